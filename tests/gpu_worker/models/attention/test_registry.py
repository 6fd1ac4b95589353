"""Backends from outside, block sizes, and the documented example, exactly as documented."""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.config import AUTO_BLOCK_SIZE
from signalbox_worker.models.attention import (
    AttentionShape,
    attention_backends,
    choose_attention_backend,
    register_attention_backend,
    registry,
)
from signalbox_worker.models.attention.backend_check import fault_of
from signalbox_worker.models.attention.torch_backend import TorchAttention
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.models.attention.device_attention import make_shape

DOCUMENT = Path(__file__).parents[4] / "docs" / "how_to" / "add_an_attention_backend.md"
EXAMPLE = "documented_backend:PlainAttention"


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_backends", registry._backends.copy())


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The document's code as a module; returns the backend's import path."""
    code = DOCUMENT.read_text().split("```python part\n")[1].split("```")[0]
    (tmp_path / "documented_backend.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "documented_backend", raising=False)
    return EXAMPLE


def load(path: Path, backend: str, **options: Any) -> LocalRunner:
    options = {"cpu_backend": "torch", "kv_cache_memory": 1 / 256} | options
    return make_runner(path, attention_backend=backend, num_gpu_blocks=12, **options)


def wide_shape() -> AttentionShape:
    return make_shape(sliding_windows=(None, 20), num_layers=2, num_kv_heads=2)


def test_the_documented_backend_gives_the_tokens_of_torch(example: str, tiny: Path) -> None:
    prompts = make_prompts(3, 26, 40)
    texts = [
        Driver(runner=load(tiny, name), chunk=20).generate(prompts, num_tokens=4)
        for name in (example, "torch")
    ]
    assert texts[0] == texts[1]


def test_the_documented_backend_passes_the_documented_trial(example: str) -> None:
    chosen = choose_attention_backend(example, wide_shape())
    assert fault_of(type(chosen.backend), wide_shape()) is None


def test_an_entry_point_names_a_backend(example: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("plain", example, registry.GROUP)
    monkeypatch.setattr(
        registry, "entry_points", lambda group, name="plain": (point,) if name == "plain" else ()
    )
    assert "plain" in attention_backends()
    assert (
        type(choose_attention_backend("plain", wide_shape()).backend).__name__ == "PlainAttention"
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("fast", "attention_backend is 'fast'; there are auto, flash_attn, .*, or module:factory"),
        ("no_such_module:Backend", "cannot be imported .ModuleNotFoundError: No module named"),
        ("signalbox_worker.models.attention:Missing", "cannot be imported .AttributeError"),
    ],
)
def test_a_backend_that_cannot_be_found_is_one_line(name: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as raised:
        choose_attention_backend(name, make_shape())
    assert "\n" not in str(raised.value)


def test_a_backend_chooses_its_blocks_unless_somebody_has() -> None:
    register_attention_backend("of_64", TorchAttention, block_sizes=(64, 32))
    free = make_shape(block_size=AUTO_BLOCK_SIZE)
    assert choose_attention_backend("of_64", free).block_size == 64
    assert choose_attention_backend("torch", free).block_size == 16
    assert choose_attention_backend("of_64", replace(free, block_size=32)).block_size == 32
    with pytest.raises(ValueError, match="'of_64' takes blocks of 64, 32 tokens, not 16; leave bl"):
        choose_attention_backend("of_64", replace(free, block_size=16))


def test_the_worker_announces_the_size_that_the_backend_chose(tiny: Path) -> None:
    register_attention_backend("of_64", TorchAttention, block_sizes=(64, 32))
    assert load(tiny, "of_64").profile().block_size == 64
    assert load(tiny, "of_64", block_size=32).profile().block_size == 32
    assert load(tiny, "torch").profile().block_size == 16


def test_a_cpu_starts_no_process_for_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("there is nothing to try")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert choose_attention_backend("auto", wide_shape()).name == "torch"


def test_torch_agrees_with_plain_pytorch_in_layers_of_two_kinds() -> None:
    assert fault_of(TorchAttention, wide_shape()) is None
