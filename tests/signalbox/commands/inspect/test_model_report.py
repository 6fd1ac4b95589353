"""What `signalbox doctor MODEL` says of a model, here or on the hub, before it is loaded."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.random_checkpoint import config_of, save_directory, shapes_of
from benchmarks.harness.random_gguf import save_gguf
from signalbox.cli import main
from signalbox.commands.inspect import model_report
from signalbox.commands.inspect.report import Report
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack import model_check
from signalbox.stack.model_needs import ModelNeeds, examine_model
from signalbox_contract.cache_groups import num_token_groups
from signalbox_worker.config import GIB
from signalbox_worker.device import ram
from signalbox_worker.runner.loading.opened_model import THROUGH_PYTORCH
from tests.fake_hub import FakeHub, point_at, running_hub, write_gguf
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import LATENTS, UNLIKE_LAYERS, make_llama, make_model

HUB_MODEL, DEMO = "some-org/Some-Model", "SmolLM2-135M-Instruct.Q4_1.gguf"
WIDE = {"intermediate_size": 4096}
"""Sizes of a model whose weights have some MB."""

SIZES = {"deepseek-v2": LATENTS, "gemma4": UNLIKE_LAYERS}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    with running_hub(tmp_path / "served") as served:
        point_at(monkeypatch, served.url)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield served


def needs_of(model: Path | str, **flags: Any) -> ModelNeeds:
    return examine_model(ServeSettings(model=str(model), **flags)).needs


@pytest.mark.parametrize("kind", ["llama", "sharded", "torch", "gguf"])
def test_a_model_on_the_hub_needs_what_it_needs_when_it_is_here(hub: FakeHub, kind: str) -> None:
    folder = hub.repository()
    if kind == "gguf":
        shutil.copy(Path("models", DEMO), folder)
    elif kind == "llama":
        make_llama(folder, **WIDE)
    else:
        make_model(folder)
    if kind == "torch":
        for shard in folder.glob("*.safetensors"):
            shard.unlink()
        (folder / "model.safetensors.index.json").unlink()
        (folder / "pytorch_model.bin").write_bytes(bytes(1 << 20))
    found = needs_of(HUB_MODEL)
    weights = {one.name: one.stat().st_size for one in folder.glob("*[!n]") if _is_weights(one)}
    assert found.to_fetch.items() >= weights.items()
    if kind in ("llama", "gguf"):  # others are hardly larger than their heads
        assert 0 < hub.num_sent < sum(weights.values()) / 4
    assert not any(map(_is_weights, hub.root.parent.joinpath("cache").rglob("*")))
    if kind == "torch":
        assert found.weights_bytes == 1 << 20
        return
    here = needs_of(folder / DEMO if kind == "gguf" else folder)
    assert replace(found, to_fetch={}) == here


def _is_weights(file: Path) -> bool:
    return file.suffix in (".safetensors", ".bin", ".gguf")


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("llama3", {}),
        ("llama3", {"kv_cache_dtype": "int8", "dtype": "float32"}),
        ("llama3", {"cpu_backend": "torch", "kv_cache_dtype": "fp8"}),
        ("llama3", {"quantization": "int4", "block_size": 32, "max_model_len": 100}),
        ("deepseek-v2", {"block_size": 32}),  # latents
        ("gemma4", {}),  # heads of several sizes, and a layer without K and V
        ("gemma4", {"kv_cache_dtype": "int8"}),
        ("lfm2", {"block_size": 32}),  # states
        ("qwen3.5", {"kv_cache_dtype": "int8"}),
    ],
)
def test_the_report_is_what_a_worker_has_then(
    tmp_path: Path, family: str, flags: dict[str, Any]
) -> None:
    make_model(tmp_path, family, **SIZES.get(family, {"head_dim": 16}))
    found = needs_of(tmp_path, **flags)
    runner = make_runner(tmp_path, **{"dtype": "auto", **flags})
    footprint = runner.executor.footprint
    groups = footprint.groups
    assert found.kv_block_bytes == footprint.block_bytes * num_token_groups(groups)
    assert found.states_bytes == 2 * groups[-1].state_blocks * footprint.block_bytes
    assert found.kv_block_size == footprint.block_size
    assert (found.dtype, found.max_model_len) == (runner.model.dtype, runner.model.max_model_len)
    num_rows = -(-footprint.max_model_len // footprint.block_size)
    sizes = (one.most_blocks(num_rows, block_size=footprint.block_size) for one in groups)
    assert found.kv_window_bytes == footprint.block_bytes * sum(sizes)
    assert found.is_native is ("cpu_backend" not in flags)


@pytest.mark.parametrize(
    ("family", "num_layers", "problem"),
    [
        ("llama3", 4, "weights are missing, such as 'model.layers.3."),
        ("llama3", 2, "unexpected weight 'model.layers.2."),
        ("gpt-oss", 9, "weights are missing, such as 'model.layers."),
    ],
)
def test_files_without_some_weights_are_no_model(
    hub: FakeHub, family: str, num_layers: int, problem: str
) -> None:
    """Heads of files tell, also of a model on the hub."""
    make_model(folder := hub.repository(), family, head_dim=16)
    assert needs_of(folder).is_native
    file = folder / "config.json"
    change = {"num_hidden_layers": num_layers, "layer_types": ["full_attention"] * num_layers}
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    for model in (HUB_MODEL, str(folder)):
        report, needs = model_report.examine(ServeSettings(model=model))
        assert needs is None
        assert problem in report.problems[0]


@pytest.mark.parametrize(
    ("family", "field", "value", "problem"),
    [
        ("llama3", "intermediate_size", 96, "_proj.weight has shape"),
        ("llama3", "vocab_size", 1000, "model.embed_tokens.weight has shape"),
        ("gpt-oss", "num_local_experts", 3, "has shape"),
        ("phi3", "intermediate_size", 96, "gate_up_proj.weight has shape"),
    ],
)
def test_files_of_another_shape_are_no_model(
    hub: FakeHub, family: str, field: str, value: int, problem: str
) -> None:
    make_model(folder := hub.repository(), family, head_dim=16)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    assert needs_of(folder).is_native and config[field] != value
    file.write_text(json.dumps(config | {field: value}))
    for model in (HUB_MODEL, str(folder)):
        report, needs = model_report.examine(ServeSettings(model=model))
        assert needs is None
        assert problem in report.problems[0]
        assert "config.json does not belong to these weights" in report.problems[0]


def test_ranks_share_weights_and_cache(tmp_path: Path) -> None:
    make_llama(tmp_path)
    whole, divided = needs_of(tmp_path), needs_of(tmp_path, tensor_parallel_size=2)
    staged = needs_of(tmp_path, pipeline_parallel_size=3)
    assert whole.weights_bytes == divided.weights_bytes
    assert divided.rank_weights_bytes == -(-(whole.weights_bytes or 0) // 2)
    assert divided.kv_block_bytes * 2 == staged.kv_block_bytes * 3 == whole.kv_block_bytes
    assert divided.kv_window_bytes == staged.kv_window_bytes == whole.kv_window_bytes


def test_what_cannot_be_served_has_the_reason_and_status_1(
    hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    size = 1 << 19
    write_gguf(hub.repository() / "x-Q4_0.gguf", size, "rwkv7")
    assert main(["doctor", HUB_MODEL, "--json"]) == 1
    told = capsys.readouterr()
    report = json.loads(told.out)
    assert report["model"] is None
    (problem,) = report["problems"]
    assert problem.startswith("architecture not supported: rwkv7 in some-org/Some-Model/x-Q4_0")
    assert problem in told.err
    assert hub.num_sent < size / 2


def test_what_does_not_fit_is_what_serve_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_llama(tmp_path, **WIDE)
    flags = [str(tmp_path), "--device", "cpu"]
    assert main(["doctor", *flags]) == 0
    shown = capsys.readouterr().out
    assert "natively" in shown and "KiB, a block of 16" in shown
    for one in (model_check, ram):  # the weights' check, and what is left for K and V
        monkeypatch.setattr(one, "available_ram", lambda: model_check.WORKER_BYTES + 1)
    assert main(["doctor", *flags]) == 1
    told = capsys.readouterr().err
    assert "problems: 1; " in told
    with pytest.raises(MemoryError) as refusal:
        model_check.check_model(ServeSettings(model=str(tmp_path), device="cpu"))
    assert str(refusal.value) in told


def test_a_model_that_pytorch_runs_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_llama(tmp_path)
    found = needs_of(tmp_path, dtype="float16", device="cpu")
    assert found.why_not_native == "it computes in float32 and bfloat16, not in float16"
    monkeypatch.setattr("signalbox_worker.missing_packages.find_spec", lambda _: None)
    settings = ServeSettings(model=str(tmp_path), dtype="float16", device="cpu")
    report, needs = model_report.examine(settings)
    assert needs is None
    assert report.problems[0].startswith(f"{THROUGH_PYTORCH}, not natively")
    assert "pip install" in report.problems[0]


def test_flags_of_a_model_want_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--dtype", "float32"]) == 1
    assert "--dtype goes with a MODEL" in capsys.readouterr().err
    assert main(["doctor", "no/such-folder/", "--json"]) == 1
    assert "model not found" in json.loads(capsys.readouterr().out)["problems"][0]


def test_a_small_cache_is_noted(tmp_path: Path) -> None:
    make_llama(tmp_path)
    cache = 1 / 1024
    report, _ = model_report.examine(ServeSettings(model=str(tmp_path), kv_cache_memory=cache))
    (note,) = report.notes or ["none"]
    needs = needs_of(tmp_path)
    assert (needs.kv_window_bytes > cache * GIB) is ("fewer than the window" in note)


def test_states_are_not_counted_as_tokens(tmp_path: Path) -> None:
    """A sequence keeps two states, however many tokens it has."""
    make_model(tmp_path, "qwen3.5")
    needs = needs_of(tmp_path)
    a_token = needs.kv_block_bytes // needs.kv_block_size
    assert needs.kv_window_bytes == needs.max_model_len * a_token + needs.states_bytes
    least = needs.kv_block_bytes + needs.states_bytes

    def report_of(cache: int) -> Report:
        settings = ServeSettings(model=str(tmp_path), kv_cache_memory=cache / GIB)
        return model_report.examine(settings)[0]

    report = report_of(2 * least)
    shown = report.sections["memory"]
    assert shown["sequences at once"] == "at most 2"
    assert shown["states, a sequence"] == f"two of {needs.states_bytes / 2048:.1f} KiB"
    assert shown["K and V, a token"] == f"{a_token / 1024:.1f} KiB"
    num_tokens = (2 * least - needs.states_bytes) // a_token
    assert [f"are {num_tokens} tokens" in note for note in report.notes] == [True]
    (problem,) = report_of(least - 1).problems
    assert "a block and two states take" in problem


def test_a_hybrids_gguf_file_needs_what_its_folder_does(tmp_path: Path) -> None:
    config = config_of("lfm2-8b-a1b", 4) | {"vocab_size": 512, "num_experts": 4}
    config |= dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), 256)
    config |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    folder = save_directory(tmp_path / "hf", config)
    file = save_gguf(tmp_path / "x.gguf", config, shapes_of(config), "Q8_0")
    theirs = needs_of(folder)
    report, needs = model_report.examine(ServeSettings(model=str(file)))
    assert needs is not None and needs.states_bytes > 0
    assert needs.states_bytes == theirs.states_bytes
    assert needs.kv_window_bytes == theirs.kv_window_bytes
    assert report.sections["model"]["layers"] == "4, 3 of them recurrent"
    assert report.sections["memory"]["states, a sequence"].startswith("two of ")
