"""Models that are not in the tree, as packages bring them: `example_package`, beside this file."""

import json
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_kernels.torch import linear
from signalbox_worker.config import ModelError
from signalbox_worker.models import (
    DecoderConfig,
    ModelSpec,
    decoder_shapes,
    register_model,
    registry,
)
from signalbox_worker.models.decoder_config import llama_config
from signalbox_worker.models.llama import Decoder
from signalbox_worker.models.rope import RopeConfig
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.model_runners import (
    assert_greedy,
    log_probabilities,
    make_prompts,
    make_runner,
)
from tests.gpu_worker.tiny_models import OUTSIDE, make_model

PACKAGE = Path(__file__).parent / "example_package"
MODULE = "signalbox_olmo"
HEADS = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.fixture(autouse=True)
def _nothing_stays_registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_specs", dict(registry._specs))
    yield
    sys.modules.pop(MODULE, None)


def load(path: Path, *plugins: str) -> LocalRunner:
    return make_runner(
        path, model_impl="signalbox", model_plugin=",".join(plugins), num_gpu_blocks=64
    )


def install(site: Path) -> None:
    """Leaves what pip leaves of the example package, beside its modules."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {module}" for name, module in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


def test_model_of_a_plugin_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference = make_model(tmp_path, OUTSIDE)
    with pytest.raises(ModelError, match="architecture not supported: OlmoForCausalLM"):
        load(tmp_path)
    monkeypatch.syspath_prepend(PACKAGE)
    runner = load(tmp_path, MODULE)
    assert runner.model.architecture == "OlmoForCausalLM"
    assert_greedy(runner, reference, make_prompts(1, 18, 40), 12, chunks=[13])


@pytest.mark.parametrize("cpu_backend", ["auto", "torch"])
@pytest.mark.parametrize(
    ("family", "parts", "flags"),
    [(OUTSIDE, (), {}), ("stablelm", ("weight", "bias"), {"partial_rotary_factor": 1.0})],
)
def test_relative_of_llama_with_other_norms_is_a_configuration(
    family: str, parts: tuple[str, ...], flags: dict[str, Any], cpu_backend: str, tmp_path: Path
) -> None:
    reference = make_model(tmp_path, family, **HEADS, **flags)
    architecture = type(reference).__name__

    def read(config: Mapping[str, Any]) -> DecoderConfig:
        shapes = decoder_shapes({**config, "rms_norm_eps": config.get("layer_norm_eps", 1e-5)})
        norms: dict[str, Any] = {"norm_is_centred": True, "norm_parts": parts}
        return DecoderConfig(**shapes, **norms, architecture=architecture)

    register_model(ModelSpec(architecture, read, Decoder, has_stages=True, is_llama=True))
    runner = make_runner(tmp_path, cpu_backend=cpu_backend, num_gpu_blocks=64)
    assert runner.backends[0].backend == ("torch" if cpu_backend == "torch" else "native")
    assert_greedy(runner, reference, make_prompts(1, 18, 40), 12, chunks=[13])


@pytest.mark.parametrize("cpu_backend", ["auto", "torch"])
def test_relative_of_llama_may_cap_its_logits(cpu_backend: str, tmp_path: Path) -> None:
    reference, prompt = make_model(tmp_path, "llama3", **HEADS), *make_prompts(18)
    register_relative(logit_soft_cap=2.0)
    runner = make_runner(tmp_path, cpu_backend=cpu_backend, num_gpu_blocks=64)
    logits = 2.0 * torch.tanh(reference(torch.tensor([prompt])).logits[0, :-1] / 2.0)
    expected = logits.log_softmax(1)[range(len(prompt) - 1), prompt[1:]]
    torch.testing.assert_close(log_probabilities(runner, prompt), expected, atol=1e-4, rtol=0)


def test_relative_of_llama_with_a_rotation_of_its_windows_is_one_in_few_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "_can_pack", lambda weight: False)  # as on a GPU
    make_model(tmp_path, "llama3", **HEADS)
    register_relative(sliding_windows=(5, None, 5), sliding_rope=RopeConfig(theta=10.0))
    prompt, found = make_prompts(14)[0], []
    for fused_rows in (0, 16):
        runner = make_runner(tmp_path, cpu_backend="torch", num_gpu_blocks=64)
        runner.executor.loaded.model.fused_rows = fused_rows
        found.append(log_probabilities(runner, prompt))
    torch.testing.assert_close(*found, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "values", [{"is_parallel": True}, {"has_sinks": True}, {"norms_values": True}], ids=str
)
def test_relative_of_llama_that_native_programs_alone_compute_is_not_in_pytorch(
    values: dict[str, Any], tmp_path: Path
) -> None:
    make_model(tmp_path, "llama3", **HEADS)
    register_relative(**values)
    with pytest.raises(ModelError, match="is computed natively alone, but cpu_backend is 'torch'"):
        make_runner(tmp_path, cpu_backend="torch", model_impl="signalbox")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"activation": "relu"}, "activation 'relu' is not supported; use silu or gelu_pytorch"),
        ({"norm_offset": 0.5}, "norm_offset 0.5 is not supported; use 0.0 or 1.0"),
        ({"norm_offset": 1.0, "norm_is_centred": True}, "norm_offset 1.0 is not .*; use 0.0"),
    ],
)
def test_relative_of_llama_that_no_layer_computes_is_refused(
    values: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "llama3", **HEADS)
    register_relative(**values)
    with pytest.raises(ModelError, match=f"LlamaForCausalLM with {reason}"):
        make_runner(tmp_path, model_impl="signalbox")


def register_relative(**values: Any) -> None:
    """Registers a relative that differs from Llama in some values of its configuration."""

    def read(config: Mapping[str, Any]) -> DecoderConfig:
        return replace(llama_config(config), **values)

    register_model(ModelSpec("LlamaForCausalLM", read, Decoder, has_stages=True, is_llama=True))


def test_model_by_the_old_interface_is_served_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reference = make_model(tmp_path / "model", OUTSIDE)
    text = (PACKAGE / MODULE / "__init__.py").read_text()
    old = text.replace("    Model,\n", "    ServedConfig,\n").replace("Olmo(Model)", "Olmo")
    (tmp_path / f"{MODULE}.py").write_text(old.replace("-> DecoderConfig", "-> ServedConfig"))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning, match=r"ServedConfig goes .* see ModelShape"):
        runner = load(tmp_path / "model", MODULE)
    assert "Olmo does not derive from signalbox_worker.models.Model" in caplog.text
    assert_greedy(runner, reference, make_prompts(1, 18), 12, chunks=[13])


def test_model_of_a_plugin_without_pooling_is_refused_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, OUTSIDE)
    monkeypatch.syspath_prepend(PACKAGE)
    with pytest.raises(ModelError, match="OlmoForCausalLM is not served with --runner pooling"):
        make_runner(tmp_path, model_plugin=MODULE, runner="pooling")


def test_model_of_a_plugin_that_sees_both_ways_does_not_generate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, OUTSIDE)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"is_causal": False}))
    monkeypatch.syspath_prepend(PACKAGE)
    with pytest.raises(ModelError, match="generates no tokens"):
        make_runner(tmp_path, model_plugin=MODULE, runner="generate")


def test_model_of_an_installed_package_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "model", OUTSIDE)
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert type(load(tmp_path / "model").executor.loaded.model).__module__ == MODULE


def test_installed_package_is_not_imported_for_other_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path / "model", "llama2")
    install(tmp_path / "site")
    monkeypatch.syspath_prepend(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    load(tmp_path / "model")
    assert MODULE not in sys.modules


def test_plugin_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    make_model(tmp_path, "llama2")
    with pytest.raises(ModelError, match=r"--model-plugin: no_such\.module cannot be imported"):
        load(tmp_path, "no_such.module")


def test_flags_reach_the_worker() -> None:
    from signalbox.settings.loading import load
    from signalbox_worker.service.worker_settings import WorkerSettings

    flags = {"model": "m", "load_format": "dummy", "model_plugin": "a.b, c"}
    config = load(WorkerSettings, flags)
    assert (config.load_format, config.plugins) == ("dummy", ("a.b", "c"))
