"""A mixture of experts in four or five launches that depend on shapes alone.

Each sum has its own order: the products of an entry are written first, and a token's are added
after, so no result depends on which program is faster.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.triton.experts.products import choose_tile, grouped_product
from signalbox_kernels.triton.experts.routing import route
from signalbox_kernels.triton.launch import check, check_floats, check_tensors, next_power_of_2

_ELEMENTS_PER_PROGRAM = 1024


@triton.jit
def _add_shares_kernel(rows, shares, out, size, K: tl.constexpr, ELEMENTS: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    mask = element < size
    total = tl.zeros([ELEMENTS], tl.float32)
    for i in range(K):
        share = tl.load(shares + token * K + i)
        row = tl.load(rows + (token * K + i) * size + element, mask=mask, other=0.0)
        total += share * row.to(tl.float32)
    tl.store(out + token * size + element, total.to(out.dtype.element_ty), mask=mask)


def mix_experts(
    x: Tensor,
    logits: Tensor,
    gate_up: ExpertWeights,
    down: ExpertWeights,
    *,
    experts_per_token: int,
    renormalise: bool,
) -> Tensor:
    """Routes tokens to experts and sums their outputs; `ops.mix_experts` is the contract."""
    _check(x, logits, gate_up, down)
    num_tokens, size = x.shape
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if not num_tokens:
        return out
    tile = choose_tile(gate_up.weight, num_entries=num_tokens * experts_per_token)
    routed = route(logits, k=experts_per_token, renormalise=renormalise, tile_rows=tile.rows)
    hidden = grouped_product(x, gate_up, routed, tile=tile, is_gated=True)
    rows = grouped_product(hidden, down, routed, tile=tile, is_gated=False)
    elements = min(_ELEMENTS_PER_PROGRAM, next_power_of_2(size))
    _add_shares_kernel[(num_tokens, -(-size // elements))](
        rows, routed.shares, out, size, K=experts_per_token, ELEMENTS=elements
    )
    return out


def _check(x: Tensor, logits: Tensor, gate_up: ExpertWeights, down: ExpertWeights) -> None:
    op = "mix_experts"
    weights = (gate_up.weight, down.weight)
    check_tensors(op, x, logits, *weights)
    check_floats(op, x, logits)
    for weight, scales, _ in (gate_up, down):
        expected = x.dtype if scales is None else torch.float8_e4m3fn
        check(weight.dtype is expected, "{}: weights are {}, not {}", op, weight.dtype, expected)
        check(weight.is_contiguous(), "{}: weights must be contiguous", op)
    num_experts, size, hidden_size = len(weights[0]), weights[0].shape[1] // 2, x.shape[1]
    check(
        weights[0].shape == (num_experts, 2 * size, hidden_size)
        and weights[1].shape == (num_experts, hidden_size, size)
        and logits.shape == (len(x), num_experts),
        "{}: x is {}, logits {}, gate_up {}, down {}",
        op,
        x.shape,
        logits.shape,
        weights[0].shape,
        weights[1].shape,
    )
