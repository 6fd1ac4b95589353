"""Adapters that would have no or another effect are refused by name."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.adapters import peft_adapter
from signalbox_worker.files.adapters.adapter_config import DEFAULTS, read_adapter_config
from signalbox_worker.files.adapters.peft_adapter import describe_adapter, open_adapter
from tests.gpu_worker.files.adapters.peft_adapters import (
    SEVEN,
    change_config,
    change_tensors,
    make_adapter,
)
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import SHAPE, make_model

LAYERS, HIDDEN, INNER, KEYS = (
    SHAPE[name]
    for name in ("num_hidden_layers", "hidden_size", "intermediate_size", "num_key_value_heads")
)
KEYS *= HIDDEN // SHAPE["num_attention_heads"]
ROWS = dict(zip(SEVEN, (HIDDEN, KEYS, KEYS, HIDDEN, INNER, INNER, HIDDEN), strict=True))
SHAPES = {
    f"model.layers.{layer}.{'mlp' if name[0] in 'gud' else 'self_attn'}.{name}": (
        rows,
        INNER if name == "down_proj" else HIDDEN,
    )
    for layer in range(LAYERS)
    for name, rows in ROWS.items()
}
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound")
    make_adapter(make_model(path / "model"), path / "adapter", r=4, target_modules=SEVEN)
    return path


@pytest.fixture
def adapter(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound / "adapter", tmp_path / "adapter"))


def refused(path: Path, message: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=message):
        open_adapter("mine", path, shapes=SHAPES, **options)


def test_a_sound_adapter_is_opened(adapter: Path) -> None:
    opened = open_adapter("mine", adapter, shapes=SHAPES)
    assert set(opened.modules) == SHAPES.keys()
    assert opened.info == describe_adapter("mine", adapter)


def test_fields_that_are_left_out_have_the_defaults_of_peft(tmp_path: Path) -> None:
    from peft import LoraConfig

    fields = {"peft_type": "LORA", "target_modules": ["q_proj"], "rank_pattern": {"k_proj": 3}}
    (tmp_path / "adapter_config.json").write_text(json.dumps(fields))
    read = read_adapter_config(tmp_path / "adapter_config.json", SHAPES)
    peft, module = LoraConfig(), next(name for name in SHAPES if name.endswith("q_proj"))
    assert (read.rank_of(module), read.scale(module)) == (peft.r, peft.lora_alpha / peft.r)
    assert {name: getattr(peft, name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("peft_type", "LOHA", "only LORA is served"),
        ("use_dora", True, "use_dora = true: DoRA is not served"),
        ("bias", "lora_only", "biases are not served"),
        ("lora_bias", True, "biases are not served"),
        ("modules_to_save", ["lm_head"], "whole modules are not served"),
        ("trainable_token_indices", [1], "tokens that were trained"),
        ("target_parameters", ["mlp.experts.down_proj"], "parameters of experts"),
        ("layer_replication", [[0, 2]], "replicated layers"),
        ("init_lora_weights", "pissa", "changed the base model's weights"),
        ("alora_invocation_tokens", [5], "alora_invocation_tokens = .*would change"),
        ("use_qalora", True, "use_qalora"),
        ("a_field_of_the_future", {"on": 1}, "a_field_of_the_future = .*not served"),
        ("r", 0, "r is 0"),
        ("r", "4", 'r is "4"'),
        ("lora_alpha", None, "an alpha is null"),
        ("lora_alpha", float("nan"), "an alpha is NaN"),
        ("lora_alpha", 10**400, "is not sound"),
        ("rank_pattern", ["q_proj"], r"\[\"q_proj\"\] is no object of patterns"),
        ("rank_pattern", {"q_proj": 10**400}, "is expected; the adapter is of another"),
        ("target_modules", [], "target_modules names no module"),
        ("target_modules", "(", "is not sound"),
        ("target_modules", "(" * 5000, "is not sound"),
        ("target_modules", "(([a-z_.0-9]+)+)+!", "takes too long .* give their names as a list"),
        ("rank_pattern", {"(([a-z_.0-9]+)+)+!": 4}, "takes too long"),
        ("rank_pattern", {"(?i)q_proj": 4}, "is not sound"),
        ("target_modules", [3], "no list of names"),
        ("use_rslora", 1, "use_rslora is 1"),
        ("r", 8, r"lora_A of .* has shape \(4, 48\) where \(8, 48\) is expected"),
        ("rank_pattern", {"q_proj": 2}, r"q_proj .* where \(2, 48\) is expected"),
        ("target_modules", ["q_proj"], "its adapter_config.json does not target"),
        ("exclude_modules", ["k_proj"], "k_proj, which its adapter_config.json does not target"),
        ("layers_to_transform", "01", 'layers_to_transform is "01"'),
        ("layers_to_transform", [0], "layers.1.* does not target"),
    ],
)
def test_a_field_that_is_not_served_is_named(
    adapter: Path, field: str, value: object, message: str
) -> None:
    change_config(adapter, **{field: value})
    refused(adapter, message)


@pytest.mark.parametrize(
    "neutral",
    [
        {"a_field_of_the_future": None},
        {"a_field_of_the_future": False},
        {"a_field_of_the_future": []},
        {"fan_in_fan_out": True},
        {"lora_dropout": 0.1},
        {"init_lora_weights": "gaussian"},
        {"target_modules": r".*\.(self_attn|mlp)\.(?:[qkvo]|gate|up|down)_proj"},
        {"layers_to_transform": [*range(LAYERS)], "layers_pattern": ["(layers|h)"]},
    ],
    ids=str,
)
def test_a_field_without_effect_is_taken(adapter: Path, neutral: dict[str, object]) -> None:
    change_config(adapter, **neutral)
    assert len(open_adapter("mine", adapter, shapes=SHAPES).modules) == len(SHAPES)


def _without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


def _renamed(name: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda tensors: {new if k == name else k: v for k, v in tensors.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without(FIRST), "has no lora_A of it; it is of another base model, or incomplete"),
        (_renamed(FIRST, FIRST.replace("lora_A.weight", "lora_magnitude_vector")), "no part of a"),
        (_renamed(FIRST, FIRST.replace("layers.0", "layers.9")), "layers.9.* does not have"),
        (_renamed(FIRST, "lora_A.weight"), "no part of a LoRA matrix"),
        (_renamed(FIRST, "base_model.model.lm_head.lora_A.weight"), "changes lm_head"),
        (lambda tensors: tensors | {FIRST: tensors[FIRST][:, 1:].contiguous()}, "another base"),
    ],
)
def test_tensors_that_do_not_fit_are_named(
    adapter: Path, change: Callable[[dict[str, Any]], dict[str, Any]], message: str
) -> None:
    change_tensors(adapter, change)
    refused(adapter, message)


@pytest.mark.parametrize("is_scale", [False, True])
def test_numbers_that_are_not_finite_are_refused(adapter: Path, is_scale: bool) -> None:
    if is_scale:
        change_config(adapter, lora_alpha=1e40)
    else:
        change_tensors(adapter, lambda tensors: tensors | {FIRST: tensors[FIRST] * float("inf")})
    opened = open_adapter("mine", adapter, shapes=SHAPES)
    with pytest.raises(ModelError, match="is not finite in model"):
        opened.pair(opened.modules[0])


def test_files_that_are_missing_cut_or_pickled_are_named(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refused(adapter, "it ends early")
    (adapter / "adapter_config.json").write_text("[1")
    refused(adapter, "adapter_config.json cannot be read")
    weights.rename(adapter / "adapter_model.bin")
    refused(adapter, "adapter_model.bin is not read, as it may run code")
    refused(adapter / "elsewhere", "give the folder of an adapter")


def test_files_that_vanish_while_they_are_read_are_named(
    adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = open_adapter("mine", adapter, shapes=SHAPES)
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(ModelError, match="safetensors cannot be read"):
        opened.pair(opened.modules[0])
    monkeypatch.setattr(peft_adapter, "check_adapter", lambda *_: None)
    refused(adapter, "adapter_model.safetensors cannot be read .No such file")


def test_more_than_an_adapter_of_the_model_needs_is_not_read(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"base_model.model.{i}.lora_A.weight": entry for i in range(50_000)})
    weights.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    refused(adapter, "its header has .* bytes, more than")
    change_config(adapter, rank_pattern={f"module{i}": 4 for i in range(100_000)})
    refused(adapter, "adapter_config.json has more than")


def test_what_follows_the_tensors_is_refused_before_it_is_read(adapter: Path) -> None:
    os.truncate(adapter / "adapter_model.safetensors", 1 << 40)
    refused(adapter, "it goes on after its tensors")


def test_a_pipe_in_the_place_of_a_file_is_refused(adapter: Path) -> None:
    weights = adapter / "adapter_model.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    refused(adapter, "it is no file with content")


def test_a_rank_beyond_the_bound_names_the_flag(adapter: Path) -> None:
    refused(adapter, "has rank 4, more than .* 3; raise --max-lora-rank", max_rank=3)


@pytest.mark.parametrize("given", ["mine", "=path", "a=1,a=2", '{"name": "a"}', "a\tb=c"])
def test_what_is_no_name_and_folder_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="adapter"):
        ModelConfig(model="m", lora=given)


def test_adapters_are_written_as_for_vllm() -> None:
    for given in ("a=x,b=y", ["a=x", "b=y"], ['{"name": "a", "path": "x"}', "b=y"]):
        assert ModelConfig(model="m", lora=given).adapters == (("a", "x"), ("b", "y"))


def test_an_adapter_with_the_models_name_is_refused(sound: Path) -> None:
    with pytest.raises(ModelError, match="named 'model', as the model is"):
        make_runner(sound / "model", lora=f"model={sound / 'adapter'}")


@pytest.mark.parametrize(
    ("family", "name"), [("gpt2", "GPT2LMHeadModel"), ("stablelm", "StableLmForCausalLM")]
)
def test_a_family_without_adapters_is_named(
    sound: Path, tmp_path: Path, family: str, name: str
) -> None:
    make_model(tmp_path, family)
    with pytest.raises(ModelError, match=f"not served for {name}; merge them into the model"):
        make_runner(tmp_path, lora=f"mine={sound / 'adapter'}")
    runner = make_runner(tmp_path, max_lora_rank=8, max_cpu_loras=2)
    assert runner.memory().adapters == 0
    with pytest.raises(ModelError, match=f"not served for {name}; merge them into the model"):
        runner.open_adapter("mine", str(sound / "adapter"))


def test_another_base_is_a_warning(
    sound: Path, adapter: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change_config(adapter, base_model_name_or_path="org/another")
    make_runner(sound / "model", lora=f"mine={adapter}")
    assert "mine was trained on org/another" in caplog.text
