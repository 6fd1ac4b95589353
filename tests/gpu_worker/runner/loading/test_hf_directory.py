"""Directories: what is read, and what is refused in one line."""

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_worker.config import CacheConfig, ModelConfig, ModelError
from signalbox_worker.runner.loading.model_source import model_name
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service import runner_factory
from tests.gpu_worker.model_runners import (
    WEIGHTS,
    assert_greedy,
    make_prompts,
    make_runner,
    remove_files,
)
from tests.gpu_worker.runner.loading.gguf_files import open_path
from tests.gpu_worker.tiny_models import make_llama, make_model, make_tokenizer

# ---- directories ----


def test_directory_gives_its_tokenizer_as_plain_strings(tmp_path: Path) -> None:
    make_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    source = open_path(tmp_path)
    files = source.tokenizer_files()
    config = json.loads(files["tokenizer_config.json"])
    assert (config["bos_token"], config["eos_token"]) == ("<s>", "</s>")
    assert config["chat_template"] == "{{ messages }}"
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.encode("w3 w5 </s>").ids == [3, 5, 2]


def test_end_of_sequence_ids_come_from_generation_config_and_tokenizer(tmp_path: Path) -> None:
    make_model(tmp_path)
    assert open_path(tmp_path).eos_token_ids() == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 5]}')
    assert open_path(tmp_path).eos_token_ids() == (2, 5, 7)


@pytest.mark.parametrize(
    ("architecture", "ids"),
    [("LlamaForCausalLM", (2,)), ("GemmaForCausalLM", (1,)), ("Qwen2ForCausalLM", ())],
)
def test_end_of_sequence_that_no_file_names_is_that_of_the_class(
    architecture: str, ids: tuple[int, ...], tmp_path: Path
) -> None:
    make_tokenizer(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(tokenizer | {"eos_token": None}))
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    assert open_path(tmp_path).eos_token_ids() == ids


def test_end_of_sequence_that_is_none_ends_nothing(tmp_path: Path) -> None:
    make_model(tmp_path)
    for name in ("config.json", "generation_config.json"):
        content = json.loads((tmp_path / name).read_text()) | {"eos_token_id": -1}
        (tmp_path / name).write_text(json.dumps(content))
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
    assert make_runner(tmp_path).model.eos_token_ids == ()


def test_named_templates_become_the_default_one(tmp_path: Path) -> None:
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    templates = [{"name": "rag", "template": "t"}, {"name": "default", "template": "d"}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    files = open_path(tmp_path).tokenizer_files()
    assert json.loads(files["tokenizer_config.json"]) == {"chat_template": "d"}


def test_other_tensors_beside_the_model_are_not_its(tmp_path: Path) -> None:
    """An adapter, or the same weights as their author stored them."""
    make_llama(tmp_path)
    model = tmp_path / "model.safetensors"
    shutil.copy(model, tmp_path / "adapter_model.safetensors")
    assert open_path(tmp_path).files() == [tmp_path / "config.json", model]


@pytest.mark.parametrize("family", ["llama2", "phi3", "starcoder2"])  # the last by transformers
@pytest.mark.parametrize(
    "described",
    [
        {"quantization_config": {}},
        {"compression_config": {"config_groups": {}, "kv_cache_scheme": {"num_bits": 8}}},
    ],
)
def test_description_of_no_quantised_weights_leaves_floats(
    described: dict[str, Any], family: str, tmp_path: Path
) -> None:
    reference = make_model(tmp_path, family)
    config = json.loads((tmp_path / "config.json").read_text()) | described
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_greedy(make_runner(tmp_path), reference, make_prompts(5))


def test_progress_is_told(tmp_path: Path) -> None:
    make_model(tmp_path)
    told: list[StartupProgress] = []
    runner = runner_factory.make_runner(
        RunnerConfig(model=ModelConfig(model=str(tmp_path)), cache=CacheConfig()),
        progress=told.append,
    )
    loading = [progress for progress in told if progress.phase is StartupPhase.LOAD]
    assert loading[0].num_total == 0
    num_weights = loading[-1].num_total
    assert [progress.num_done for progress in loading[1:]] == [*range(1, num_weights + 1)]
    runner.profile()
    assert told[-1] == StartupProgress(StartupPhase.PROFILE)


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: remove_files(path, "config.json"), r"has no config\.json"),
        (lambda path: (path / "config.json").write_text("{"), r"config\.json cannot be read"),
        (lambda path: remove_files(path, "tokenizer*"), r"no tokenizer; add its tokenizer\.json"),
        (lambda path: remove_files(path, *WEIGHTS), r"has no \.safetensors"),
        (lambda path: min(path.glob("*.safetensors")).unlink(), "lacks model-00001-of"),
        (lambda path: shorten(min(path.glob("*.safetensors"))), "model-00001-of.* cannot be read"),
        (lambda path: (path / "tokenizer.json").write_text("{}"), "describes no tokenizer"),
        (
            lambda path: (path / "tokenizer_config.json").write_text("version https://git-lfs"),
            r"tokenizer_config\.json cannot be read",
        ),
        (
            lambda path: (path / "tokenizer_config.json").write_text('{"eos_token": {"id": 2}}'),
            r"tokenizer_config\.json is not sound",
        ),
        (
            lambda path: (path / "model.safetensors.index.json").write_text(
                '{"weight_map": {"a": "../other/model.safetensors"}}'
            ),
            r"index.json names \.\./other/model.safetensors, which is not in its folder",
        ),
    ],
)
def test_directory_that_lacks_or_spoils_a_file_is_refused(
    spoil: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 60}, "has shape .* does not belong to these weights"),
        ({"num_hidden_layers": 4}, r"weights are missing, such as 'model\.layers\.3"),
        ({"num_hidden_layers": 2}, r"unexpected weight 'model\.layers\.2"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers = 1099511627776, which is no whole"),
        ({"max_position_embeddings": 1 << 40}, "max_position_embeddings = 1099511627776, which"),
        ({"vocab_size": 0}, "vocab_size = 0, which is no whole number"),
        ({"hidden_size": "64"}, "hidden_size = 64, which is no whole number"),
        ({"num_attention_heads": [1]}, r"num_attention_heads = \[1\], which"),
        ({"num_key_value_heads": 4}, "num_key_value_heads = 4 does not divide"),
        ({"head_dim": -8}, "head_dim = -8, which"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps = -1e-05, which"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps = nan, which"),
        ({"rope_parameters": 5}, "rope_parameters = 5"),
        ({"architectures": 5}, "does not name its architectures"),
        ({"eos_token_id": "a"}, "eos_token_id is 'a'; it must be a token id"),
        ({"eos_token_id": True}, "eos_token_id is True; it must be a token id"),
        (
            {"architectures": ["MistralForCausalLM"], "sliding_window": "a"},
            "sliding_window = a, which",
        ),
        (
            {"architectures": ["Gemma4ForCausalLM"], "hidden_size_per_layer_input": -32},
            "hidden_size_per_layer_input = -32, which is no whole number",
        ),
        (
            {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention"]},
            "does not give the layer_types of 3 layers",
        ),
    ],
)
def test_configuration_of_another_model_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "llama2", head_dim=8)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(ModelError, match=message):
        make_runner(tmp_path)


# ---- names ----


def test_model_in_a_path_that_is_no_utf8_has_a_name_that_is(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"m\xff")
    path.mkdir()
    assert model_name(ModelConfig(model=str(path))) == "m?"


@pytest.mark.parametrize("name", ["no/such/path", "missing.gguf", "a/b.gguf", "./nothing", "word"])
def test_wrong_path_is_one_clear_line(name: str) -> None:
    with pytest.raises(FileNotFoundError, match=f"model not found: {name}; give a directory") as e:
        open_path(name)
    assert "\n" not in str(e.value)


def test_wrong_path_in_a_directory_that_exists_is_no_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").mkdir()
    with pytest.raises(FileNotFoundError, match="model not found: models/smol"):
        open_path("models/smol")
