"""Layers of few rows by fused products: the tokens of plain ones, and when they are taken."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import linear, registry, row_ops
from signalbox_worker.device.trials.trial import Verdict
from signalbox_worker.models import few_rows
from signalbox_worker.models.few_rows import choose_products, rows_that_pay, try_layer
from signalbox_worker.models.layers import Placement
from tests.gpu_worker.device.trials.trials_here import run_here
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.tiny_models import make_model

CUDA = Placement(torch.device("cuda"), torch.float32)
TINY: dict[str, Any] = {
    "shapes": [[80, 48], [48, 48], [160, 48], [48, 80]],
    "has_bias": [True, False, False, False],
    "dtype": "float32",
}


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of a CPU stay as a GPU has them."""
    monkeypatch.setattr(linear, "_can_pack", lambda weight: False)


# Plain; with biases of Q, K and V; with norms of Q and K.
@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_tokens_equal_those_of_plain_products(
    family: str, triton_device: str, unpacked: None, tmp_path: Path, monkeypatch: Any
) -> None:
    make_model(tmp_path, family)
    rows: list[int] = []
    product = registry.implementation_of("rms_norm_linear", torch.device(triton_device))

    def counted(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        rows.append(len(x))
        out: Tensor = product(x, *args, **kwargs)
        return out

    registry.register("rms_norm_linear", triton_device, counted)
    options = {"device": triton_device, "attention_backend": "torch", "enforce_eager": True}
    prompts = make_prompts(3, 26)
    drawn = []
    for backend in ("triton", "torch"):
        runner = make_runner(tmp_path, linear_backend=backend, **options)
        assert runner.backends[-1] == ("linear", backend, False)
        drawn.append(Driver(runner=runner, chunk=20).generate(prompts, num_tokens=5))
    assert drawn[0] == drawn[1]
    assert rows and max(rows) == 7  # a decode and the rest of a prompt; 23 rows are plain


@pytest.mark.parametrize(
    ("seconds", "rows"),
    [({}, 16), ((1, 2, 3), 16), ((1, 2, 9), 4), ((1, 9, 3), 1), ((9, 1, 1), 0)],
)
def test_fused_products_serve_as_many_rows_as_they_are_the_faster_for(
    seconds: tuple[int, ...], rows: int
) -> None:
    times = {
        f"{way} with {count} rows": float(each)
        for count, fused in zip((1, 4, 16), seconds, strict=False)
        for way, each in (("plain", 4), ("fused", fused))
    }
    assert rows_that_pay(times) == rows


def test_a_layer_that_is_right_is_timed_beside_the_plain_one(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clock(work: Callable[[], None]) -> float:
        work()
        return 6.0

    monkeypatch.setattr(few_rows, "_LEAST_BYTES", 1 << 18)  # of three layers in turn
    monkeypatch.setattr(few_rows, "clock_of", lambda device: clock)
    verdict = try_layer(torch.device(triton_device), **TINY)
    assert verdict.fault is None
    assert len(verdict.seconds) == 6
    assert set(verdict.seconds.values()) == {2.0}


def test_a_layer_that_computes_something_else_is_a_fault(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "linear_add", lambda x, weight, bias, residual: residual.add_(1.0))
    assert "a layer of 1 rows is off by" in str(
        try_layer(torch.device(triton_device), **TINY).fault
    )


def test_a_layer_in_bfloat16_that_leaves_a_tile_out_is_a_fault(
    triton_device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last of four products; the interpreter multiplies bfloat16 wrongly, so none is its."""
    num_columns = 2816
    shapes = [[1536, 1024], [1024, 1024], [2 * num_columns, 1024], [1024, num_columns]]
    options: dict[str, Any] = {"shapes": shapes, "has_bias": [False] * 4, "dtype": "bfloat16"}

    def without_a_tile(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
        if x.shape[1] == num_columns:
            x, weight = x[:, :-128], weight[:, :-128]
        row_ops.linear_add(x, weight, bias, residual)

    monkeypatch.setattr(ops, "rms_norm_linear", row_ops.rms_norm_linear)
    monkeypatch.setattr(ops, "linear_add", row_ops.linear_add)
    assert try_layer(torch.device(triton_device), **options).fault is None
    monkeypatch.setattr(ops, "linear_add", without_a_tile)
    assert "is off by" in str(try_layer(torch.device(triton_device), **options).fault)


def test_auto_takes_what_a_trial_says(
    triton_device: str, unpacked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path)
    model = make_runner(tmp_path, device=triton_device, cpu_backend="torch").executor.loaded.model
    assert model.fused_rows == 0, "a CPU takes its own products"
    monkeypatch.setattr(registry, "has_own", lambda op, device: True)
    verdict = Verdict()
    tried: list[Any] = []

    def verdicts_of(trials: Any, device: torch.device) -> list[Verdict]:
        tried.extend(trials)
        return [verdict]

    monkeypatch.setattr(few_rows, "verdicts_of", verdicts_of)
    options = {"num_ranks": 1, "is_quantised": False}
    assert choose_products("auto", model, CUDA, **options) == "triton"
    assert model.fused_rows == 16
    assert tried[0].arguments["shapes"] == [[80, 48], [48, 48], [160, 48], [48, 80]]
    assert run_here(tried, torch.device(triton_device))[0].is_good
    verdict = Verdict(fault="another result")
    assert choose_products("auto", model, CUDA, **options) == "torch"
    assert model.fused_rows == 0


def test_what_cannot_be_fused_is_named(
    triton_device: str, unpacked: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(
        family: str,
        num_ranks: int = 1,
        dtype: torch.dtype = torch.float32,
        is_quantised: bool = False,
    ) -> str:
        make_model(tmp_path / family, family)
        runner = make_runner(tmp_path / family, device=triton_device, cpu_backend="torch")
        choose = partial(
            choose_products,
            model=runner.executor.loaded.model,
            placement=Placement(torch.device(triton_device), dtype),
            num_ranks=num_ranks,
            is_quantised=is_quantised,
        )
        assert choose("torch") == choose("auto") == "torch"
        with pytest.raises(
            ValueError, match=r"^linear_backend is 'triton', but .*; use 'auto'$"
        ) as e:
            choose("triton")
        return str(e.value)

    assert "2 processes divide the products" in refused("llama3", num_ranks=2)
    assert "not those of the Llama family" in refused("gemma2")
    assert "not those of the Llama family" in refused("mixtral")
    assert "the model is in float16" in refused("qwen2", dtype=torch.float16)
    assert "the model's matrices are quantised" in refused("llama2", is_quantised=True)
    monkeypatch.setattr(registry, "has_own", lambda op, device: False)
    assert "Triton's kernels are not used on this" in refused("qwen3")
