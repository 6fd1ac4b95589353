"""Chooses what computes the layers of steps with few rows: fused products, or PyTorch's.

Fused ones (`DecoderLayer.add_to`) read the matrices in fewer kernels. "auto" tries a layer of the
model's sizes beside the plain one in the process of trials, with few rows and with the most, and
takes them up to the number of rows at which they are still the faster.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.torch import registry, row_ops
from signalbox_worker.device.trials.device_clock import Clock, clock_of
from signalbox_worker.device.trials.kept_verdicts import verdicts_of
from signalbox_worker.device.trials.trial import Trial, Verdict
from signalbox_worker.models.layers import Model, Placement, RMSNorm
from signalbox_worker.models.llama import Decoder

logger = logging.getLogger(__name__)

_OP = "rms_norm_linear"
_MAX_ROWS = 16
_TIMED_ROWS = (1, 4, _MAX_ROWS)
_EPS = 1e-5
_LEAST_BYTES = 1 << 28
"""Weights that are read in turn when layers are timed: more than the device's cache holds."""
_MOST_LAYERS = 8
_NUM_ROUNDINGS = {torch.bfloat16: 3, torch.float32: 16}
"""Units in the last place of the largest result by which two layers may differ: in bfloat16 they
round the same sums, a right layer takes 1.3 and one without a tile 5; in float32 6 and 1e5."""


def choose_products(
    wanted: str, model: Model, placement: Placement, *, num_ranks: int, is_quantised: bool
) -> str:
    """Sets the `fused_rows` of a model whose weights are not read yet.

    Returns the name of what computes products of few rows.

    Args:
        wanted: "auto", "triton" or "torch".
        num_ranks: that divide the products.

    Raises ValueError where "triton" cannot be used.
    """
    if wanted == "torch" or (wanted == "auto" and placement.device.type != "cuda"):
        return "torch"
    reason = _why_not(model, placement, num_ranks, is_quantised=is_quantised)
    if reason is not None:
        if wanted == "auto":
            return "torch"
        raise ValueError(f"linear_backend is 'triton', but {reason}; use 'auto'")
    assert isinstance(model, Decoder)
    model.fused_rows = _MAX_ROWS if wanted == "triton" else _tried(model, placement)
    return "triton" if model.fused_rows else "torch"


def _why_not(
    model: Model, placement: Placement, num_ranks: int, *, is_quantised: bool
) -> str | None:
    if not registry.has_own(_OP, placement.device):
        return f"Triton's kernels are not used on this {placement.device.type}"
    if num_ranks > 1:
        return f"{num_ranks} processes divide the products"
    if type(model) is not Decoder:  # another class may compute something else in between
        return "the model's layers are not those of the Llama family"
    config = model.config
    if type(model.norm) is not RMSNorm or config.has_inner_norms or config.activation != "silu":
        return "the model's norms and activations are not those of the Llama family"
    if is_quantised:
        return "the model's matrices are quantised"
    return "the model is in float16" if placement.dtype is torch.float16 else None


def _tried(model: Decoder, placement: Placement) -> int:
    """Returns the rows up to which the fused layer is right here, and the faster."""
    products = [*model.layers[0].products]
    trial = Trial(
        name="linear_backend 'triton'",
        function=f"{__name__}:{try_layer.__name__}",
        arguments={
            "shapes": [list(product.shape) for product in products],
            "has_bias": [product.has_bias for product in products],
            "dtype": str(placement.dtype).removeprefix("torch."),
        },
    )
    (verdict,) = verdicts_of([trial], placement.device)
    if verdict.fault is not None:
        logger.warning(
            "linear_backend 'triton' does not work on this %s: %s; PyTorch's products serve",
            placement.device,
            verdict.fault,
        )
        return 0
    rows = rows_that_pay(verdict.seconds)
    times = (f"{name} {seconds * 1e6:.1f} us" for name, seconds in verdict.seconds.items())
    logger.info("products of up to %d rows are Triton's; a layer takes: %s", rows, ", ".join(times))
    return rows


def rows_that_pay(seconds: Mapping[str, float]) -> int:
    """Returns the most rows that were timed for which, as for all fewer, the fused layer was the
    faster; without times all that it takes."""
    if not seconds:
        return _MAX_ROWS
    most = 0
    for rows in _TIMED_ROWS:
        if seconds[_title("fused", rows)] >= seconds[_title("plain", rows)]:
            break
        most = rows
    return most


def _title(way: str, rows: int) -> str:
    return f"{way} with {rows} rows"


class _Layer:
    """A layer with random weights; attention is left out between the first two products."""

    def __init__(
        self, shapes: list[list[int]], has_bias: list[bool], random: Callable[..., Tensor]
    ) -> None:
        self.norm = random(shapes[0][1])
        self.weights = [random(*shape).div_(shape[1] ** 0.5) for shape in shapes]
        self.biases = [
            random(shape[0]) if biased else None
            for shape, biased in zip(shapes, has_bias, strict=True)
        ]

    def fused(self, residual: Tensor, products: Any = ops) -> None:
        """Computes `DecoderLayer.add_to` by the functions of `products`."""
        (qkv, out, gate_up, down), biases, norm = self.weights, self.biases, self.norm
        heads = products.rms_norm_linear(residual, norm, qkv, biases[0], eps=_EPS, is_gated=False)
        products.linear_add(heads[:, : out.shape[1]], out, biases[1], residual)
        fed = products.rms_norm_linear(residual, norm, gate_up, biases[2], eps=_EPS, is_gated=True)
        products.linear_add(fed, down, biases[3], residual)

    def plain(self, residual: Tensor) -> None:
        """Computes a layer of other steps, whose first norm adds what the layer before gave."""
        (qkv, out, gate_up, down), biases, norm = self.weights, self.biases, self.norm
        normed = ops.fused_add_rms_norm(residual, residual, norm, eps=_EPS)
        attended = F.linear(F.linear(normed, qkv, biases[0])[:, : out.shape[1]], out, biases[1])
        normed = ops.fused_add_rms_norm(attended, residual, norm, eps=_EPS)
        F.linear(ops.silu_and_mul(F.linear(normed, gate_up, biases[2])), down, biases[3])


def try_layer(
    device: torch.device, *, shapes: list[list[int]], has_bias: list[bool], dtype: str
) -> Verdict:
    """Compares a fused layer with the reference on a device, and times it beside a plain one there;
    called in the process of trials."""
    from signalbox_kernels import triton

    triton.register_ops(device.type)
    kind: torch.dtype = getattr(torch, dtype)
    generator = torch.Generator(device).manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=kind)

    layer = _Layer(shapes, has_bias, random)
    for rows in (1, 3, _MAX_ROWS):
        found = random(rows, shapes[0][1])
        expected = found.clone()
        layer.fused(found)
        layer.fused(expected, row_ops)
        worst = float((found - expected).abs().max())
        unit = torch.finfo(kind).eps * float(expected.abs().max())
        if not worst <= _NUM_ROUNDINGS[kind] * unit:
            return Verdict(fault=f"a layer of {rows} rows is off by {worst:.2g}")
    clock = clock_of(device)
    if clock is None:
        return Verdict()
    num_bytes = sum(weight.nbytes for weight in layer.weights)
    count = max(1, min(_MOST_LAYERS, _LEAST_BYTES // num_bytes))
    layers = [layer, *(_Layer(shapes, has_bias, random) for _ in range(1, count))]
    return Verdict(seconds=dict(_times(layers, clock, random, hidden_size=shapes[0][1])))


def _times(
    layers: list[_Layer], clock: Clock, random: Callable[..., Tensor], *, hidden_size: int
) -> Iterator[tuple[str, float]]:
    """Yields the seconds of a layer, plain and fused, by numbers of rows."""
    for rows in _TIMED_ROWS:
        residual = random(rows, hidden_size)
        for way in ("plain", "fused"):
            calls = [partial(getattr(layer, way), residual) for layer in layers]
            yield _title(way, rows), clock(partial(_in_turn, calls)) / len(layers)


def _in_turn(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
