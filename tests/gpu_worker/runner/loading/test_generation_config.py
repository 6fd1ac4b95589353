"""Which file gives a model's default sampling parameters, and its end tokens."""

import json
from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.config import CacheConfig, ModelConfig, ModelError
from signalbox_worker.runner.loading.generation_config import (
    read_generation_config,
    within_vocabulary,
)
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.runner.loading.gguf_files import open_path, writing
from tests.gpu_worker.tiny_models import make_model

CONFIG = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 512, "eos_token_id": [7, 5]}


def write_config(path: Path, content: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "generation_config.json").write_text(json.dumps(content))
    return path


def read(model: Path, **options: Any) -> tuple[dict[str, Any], dict[str, Any], tuple[int, ...]]:
    """Returns the model's defaults, those that override them, and the end tokens."""
    config = ModelConfig(model=str(model), **options)
    found = read_generation_config(config, open_path(model))
    return found.defaults.model.fields(), found.defaults.override.fields(), found.eos_token_ids


def test_a_model_brings_its_own_file(tmp_path: Path) -> None:
    make_model(tmp_path)
    assert read(tmp_path) == ({}, {}, (2,))
    write_config(tmp_path, CONFIG)
    expected = {"temperature": 0.6, "top_k": 20, "max_tokens": 512}
    assert read(tmp_path) == (expected, {}, (2, 5, 7))
    runner = make_runner(RunnerConfig(model=ModelConfig(model=str(tmp_path)), cache=CacheConfig()))
    assert runner.model.sampling_defaults.model.fields() == expected
    assert runner.model.eos_token_ids == (2, 5, 7)


@pytest.mark.parametrize("name", ["none", "vllm"])
def test_none_leaves_the_end_tokens(name: str, tmp_path: Path) -> None:
    make_model(tmp_path)
    write_config(tmp_path, CONFIG)
    assert read(tmp_path, generation_config=name) == ({}, {}, (2, 5, 7))


def test_another_directory_takes_the_place_of_the_models_file(tmp_path: Path) -> None:
    make_model(tmp_path)
    write_config(tmp_path, CONFIG)
    other = write_config(tmp_path / "other", {"min_p": 0.1, "eos_token_id": 9})
    found = read(tmp_path, generation_config=str(other))
    assert found == ({"min_p": 0.1}, {}, (2, 5, 7, 9))
    with pytest.raises(ModelError, match=r"there is no .*missing/generation_config.json"):
        read(tmp_path, generation_config=str(tmp_path / "missing"))


def test_an_override_stands_beside_the_file(tmp_path: Path) -> None:
    make_model(tmp_path)
    write_config(tmp_path, CONFIG)
    override = {"temperature": 0.25, "eos_token_id": 11}
    model, overrides, eos = read(tmp_path, override_generation_config=override)
    assert (model["temperature"], overrides, eos) == (0.6, {"temperature": 0.25}, (2, 5, 7, 11))
    with pytest.raises(ValueError, match=r"override_generation_config\n.*it has 'top_q'"):
        ModelConfig(model="m", override_generation_config={"top_q": 1})


def test_a_file_that_makes_no_sense_is_named_with_the_remedy(tmp_path: Path) -> None:
    make_model(tmp_path)
    write_config(tmp_path, {"temperature": -1})
    with pytest.raises(ModelError, match=r"temperature is -1; .*--generation-config none"):
        read(tmp_path)
    assert read(tmp_path, generation_config="none")[0] == {}


def test_a_gguf_files_metadata_gives_them(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    floats = {"temp": 0.5, "top_p": 0.75, "min_p": 0.0, "penalty_repeat": 1.25}
    with writing(path, "llama") as writer:
        for name, value in floats.items():
            writer.add_float32(f"general.sampling.{name}", value)
        writer.add_int32("general.sampling.top_k", 20)
        writer.add_token_list(["a", "<|im_end|>"])
        writer.add_token_types([1, 3])
    expected = {
        "temperature": 0.5,
        "top_p": 0.75,
        "top_k": 20,
        "min_p": 0.0,
        "repetition_penalty": 1.25,
    }
    assert read(path) == (expected, {}, (1,))
    assert read(path, generation_config="none") == ({}, {}, (1,))


def test_end_tokens_beyond_the_vocabulary_are_dropped_with_a_warning_that_names_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert within_vocabulary((2, 99, 100, 999999), 100) == (2, 99)
    assert "beyond the vocabulary of 100 are dropped: 100, 999999" in caplog.text
