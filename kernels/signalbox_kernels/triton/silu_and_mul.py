"""SwiGLU's product (Shazeer, 2020): silu(gate) * up in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.launch import check, check_floats, check_tensors, next_power_of_2

_ELEMENTS_PER_PROGRAM = 1024


@triton.jit
def _silu_and_mul_kernel(gate_up, out, row_stride, size, ELEMENTS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    mask = element < size
    gate = tl.load(gate_up + row * row_stride + element, mask=mask, other=0.0)
    up = tl.load(gate_up + row * row_stride + size + element, mask=mask, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype).to(tl.float32)
    product = activated * up.to(tl.float32)
    tl.store(out + row * size + element, product.to(gate.dtype), mask=mask)


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """Returns silu(gate) * up; `ops.silu_and_mul` is the contract."""
    check_tensors("silu_and_mul", gate_up)
    check_floats("silu_and_mul", gate_up)
    check(
        gate_up.dim() == 2 and gate_up.shape[1] % 2 == 0,
        "silu_and_mul: {} is not [num_tokens, 2 * size]",
        gate_up.shape,
    )
    num_tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_tokens:
        elements = min(_ELEMENTS_PER_PROGRAM, next_power_of_2(size))
        _silu_and_mul_kernel[(num_tokens, -(-size // elements))](
            gate_up, out, gate_up.stride(0), size, ELEMENTS=elements
        )
    return out
