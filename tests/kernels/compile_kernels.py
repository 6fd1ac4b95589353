"""Compiles every Triton kernel for a GPU that need not be there; a program of its own.

Launchers are called with tensors without data, and a kernel's launch stops at the binary, so that
what is compiled is what the launchers ask for. A process of its own, because Triton decides when it
is imported whether it interprets.
"""

import os
import sys
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

from signalbox_kernels.triton import (
    blocks,
    logit_edits,
    logprobs,
    paged_attention,
    rms_norm,
    rotary,
    sampling,
    silu_and_mul,
)
from signalbox_kernels.triton import reshape_and_cache as caching

_TOKENS, _HEADS, _KV_HEADS = 4, 8, 2
_launch = JITFunction.run


class _NoDriver:
    """A device that only has a name."""

    def __init__(self, capability: int) -> None:
        self._target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)


def _compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
    mocks = [MockTensor(a.dtype, a.shape) if isinstance(a, Tensor) else a for a in args]
    kernel = _launch(self, *mocks, grid=grid, warmup=True, **kwargs)
    print(self.fn.__name__, len(kernel.asm["cubin"]), kernel.metadata.shared)
    return kernel


def compile_all(dtype: torch.dtype, *, head_size: int) -> None:
    """One launch of each kernel, and of attention's main variants."""
    of: dict[str, Any] = {"dtype": dtype, "device": "cuda"}
    index: dict[str, Any] = {"dtype": torch.int64, "device": "cuda"}
    cache = torch.empty(9, 2, _KV_HEADS, 16, head_size, **of).transpose(2, 3)
    key_value = torch.empty(_TOKENS, 2, _KV_HEADS, head_size, **of)
    key, value = key_value.unbind(dim=1)
    angles = torch.empty(_TOKENS, 1, head_size, **of)
    slots = torch.empty(_TOKENS, **index)
    rows, weight = torch.empty(_TOKENS, 4096, **of), torch.empty(4096, **of)
    caching.reshape_and_cache(key, value, cache, slots)
    rms_norm.rms_norm(rows, weight, eps=1e-5)
    rms_norm.fused_add_rms_norm(rows, rows.clone(), weight, eps=1e-5)
    silu_and_mul.silu_and_mul(rows)
    query = torch.empty(_TOKENS, _HEADS, head_size, **of)
    rotary.rotary_embedding(query, angles, angles)
    rotary.rotary_and_cache(query, key_value, angles, angles, cache, slots)
    logits = torch.empty(_TOKENS, 32000, dtype=torch.float32, device="cuda")
    logprobs.gather_logprobs(logits, slots, num_top=2)
    pool, runs = torch.empty(9, 1 << 17, **index), torch.empty(3, 3, **index)
    blocks._copy_runs_kernel[(3, 1)](pool, pool, runs, pool.shape[1], WORDS=2048)
    for num_splits, num_seqs, window, cap in ((1, 1, None, None), (4, _TOKENS, 512, 30.0)):
        paged_attention.paged_attention(
            query,
            cache,
            query_start=torch.empty(num_seqs + 1, **index),
            context_lens=torch.empty(num_seqs, **index),
            block_tables=torch.empty(num_seqs, 8, dtype=torch.int32, device="cuda"),
            scale=0.1,
            sliding_window=window,
            soft_cap=cap,
            num_splits=num_splits,
        )
    compile_sampling()


def compile_sampling() -> None:
    """Draws from a model's logits and from edited ones, and the edits."""

    def column(dtype: torch.dtype, *size: int) -> Tensor:
        return torch.empty(*(size or (_TOKENS,)), dtype=dtype, device="cuda")

    logits, wide = column(torch.bfloat16, _TOKENS, 32000), column(torch.int64)
    floats, ints = (
        [column(torch.float32) for _ in range(4)],
        [column(torch.int32) for _ in range(3)],
    )
    columns = sampling.DrawColumns(wide, *floats, *ints)
    masks = column(torch.int32, 1, 1000)
    sampling.draw_tokens(logits, columns)
    logit_edits.copy_rows(logits, wide, mask_of_row=None, masks=None)
    edited, status = logit_edits.copy_rows(logits, wide, mask_of_row=ints[0], masks=masks)
    logit_edits.add_to_tokens(edited, wide, ints[0], floats[0])
    tokens = column(torch.int32, _TOKENS, 3000)
    logit_edits.penalise(edited, logit_edits.PenaltyColumns(wide, *floats[:3], wide, wide, tokens))
    sampling.draw_tokens(edited, columns, status=status)


if __name__ == "__main__":
    driver.set_active(_NoDriver(int(sys.argv[1])))
    JITFunction.run = _compile_only
    with FakeTensorMode():
        compile_all(getattr(torch, sys.argv[2]), head_size=int(sys.argv[3]))
