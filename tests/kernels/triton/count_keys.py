"""Counts what Triton would compile for steps of many shapes; a program of its own.

Prints a line of JSON: the number of different compilations of each kernel. Launchers are called
with tensors without data, whose addresses are their offsets in what a step sends to the device, and
a launch stops at the key under which Triton keeps what it has compiled. A process of its own,
because Triton decides when it is imported whether it interprets.
"""

import json
import os
from collections import defaultdict
from itertools import product
from typing import Any

os.environ["TRITON_INTERPRET"] = "0"

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime import driver
from triton.runtime.jit import JITFunction, MockTensor

from signalbox_kernels.filters import Filters
from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.triton import reshape_and_cache as caching
from signalbox_kernels.triton import rms_norm, rotary, silu_and_mul
from signalbox_kernels.triton.attention.paged_attention import paged_attention
from signalbox_kernels.triton.attention.work import Sharing
from signalbox_kernels.triton.experts import mixture
from signalbox_kernels.triton.matrices import few_rows, fp8, w4a16
from signalbox_kernels.triton.sampling import draws, logit_edits, logprobs
from tests.kernels.triton.compile_kernels import NoDriver, int4_weight

NUM_TOKENS = (1, 2, 3, 15, 16, 17, 33, 64)
_HEADS, _KV_HEADS, _HEAD_SIZE, _HIDDEN, _VOCAB = 8, 2, 64, 512, 32000
_FLOAT = torch.bfloat16

found: dict[str, set[str]] = defaultdict(set)


class _Placed(MockTensor):
    """A tensor whose address is its offset in its storage."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__(tensor.dtype, tensor.shape)
        self._address = tensor.storage_offset() * tensor.itemsize

    def data_ptr(self) -> int:
        return self._address


def _note_key(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    *_, binder = kernel.device_caches[0]
    placed = [_Placed(a) if isinstance(a, Tensor) else a for a in args]
    _, specialization, options = binder(*placed, debug=False, **kwargs)
    found[kernel.fn.__name__].add(repr((specialization, options)))


def _sent(count: int, dtype: torch.dtype) -> Tensor:
    """A column somewhere in a step's packed copy, at a multiple of 16 bytes."""
    start = 48 if count % 2 else 16
    return torch.empty(count + 48, dtype=dtype, device="cuda").narrow(0, start, count)


def _floats(*size: int) -> Tensor:
    return torch.empty(*size, dtype=_FLOAT, device="cuda")


def run_model(num_tokens: int, num_seqs: int, table_width: int) -> None:
    """The kernels of a layer."""
    rows, weight = _floats(num_tokens, _HIDDEN), _floats(_HIDDEN)
    rms_norm.rms_norm(rows, weight, eps=1e-5)
    rms_norm.fused_add_rms_norm(rows, rows.clone(), weight, eps=1e-5)
    silu_and_mul.silu_and_mul(_floats(num_tokens, 2 * _HIDDEN))
    few = _floats(min(num_tokens, few_rows.MAX_ROWS), _HIDDEN)
    matrix = _floats(2 * _HIDDEN, _HIDDEN)
    for is_gated in (False, True):
        few_rows.rms_norm_linear(few, weight, matrix, None, eps=1e-5, is_gated=is_gated)
    few_rows.linear_add(few, matrix, None, _floats(len(few), 2 * _HIDDEN))
    for num_splits in (1, 2, 7):
        weight = int4_weight(group_size=128)
        w4a16.w4a16_linear(_floats(num_tokens, 1024), weight, None, num_splits=num_splits)
    codes = torch.empty(3 * _HIDDEN, _HIDDEN, dtype=torch.float8_e4m3fn, device="cuda")
    scales = torch.empty(3 * _HIDDEN, 1, dtype=torch.float32, device="cuda")
    fp8.fp8_linear(rows, codes, scales, None, rows_per_scale=1)
    cache = _floats(9, 2, _KV_HEADS, 16, _HEAD_SIZE).transpose(2, 3)
    packed = _floats(num_tokens, (_HEADS + 2 * _KV_HEADS) * _HEAD_SIZE)
    query, key_value = packed.split([_HEADS * _HEAD_SIZE, 2 * _KV_HEADS * _HEAD_SIZE], dim=1)
    query = query.view(num_tokens, _HEADS, _HEAD_SIZE)
    key_value = key_value.view(num_tokens, 2, _KV_HEADS, _HEAD_SIZE)
    angles, slots = _floats(num_tokens, 1, _HEAD_SIZE), _sent(num_tokens, torch.int64)
    rotary.rotary_and_cache(query, key_value, angles, angles, cache, slots)
    caching.reshape_and_cache(*key_value.unbind(dim=1), cache, slots)
    for spare, joins_inside in product((1, 16, 33), (True, False)):
        paged_attention(
            query,
            cache,
            query_start=_sent(num_seqs + 1, torch.int64),
            context_lens=_sent(num_seqs, torch.int64),
            block_tables=_sent(num_seqs * table_width, torch.int32).view(num_seqs, table_width),
            scale=0.125,
            sharing=Sharing(spare),
            joins_inside=joins_inside,
        )


def run_experts(num_tokens: int) -> None:
    """A mixture in place of a feed-forward."""
    mixture.mix_experts(
        _floats(num_tokens, _HIDDEN),
        _floats(num_tokens, 8),
        ExpertWeights(_floats(8, 2 * _HIDDEN, _HIDDEN)),
        ExpertWeights(_floats(8, _HIDDEN, _HIDDEN)),
        experts_per_token=2,
        renormalise=True,
    )


def run_sampling(num_rows: int, longest: int) -> None:
    """Draws, edits and log probabilities."""
    logits, index = _floats(num_rows, _VOCAB), _sent(num_rows, torch.int64)
    floats = [_sent(num_rows, torch.float32) for _ in range(4)]
    ints = [_sent(num_rows, torch.int32) for _ in range(3)]
    filters = Filters(*floats[1:], ints[0])
    columns = draws.DrawColumns(index, floats[0], filters, *ints[1:])
    draws.draw_tokens(logits, columns)
    edited, status = logit_edits.copy_rows(logits, index, mask_of_row=None, masks=None)
    logit_edits.add_to_tokens(edited, index, ints[0], floats[0])
    tokens = _sent(num_rows * longest, torch.int32).view(num_rows, longest)
    penalised = logit_edits.PenaltyColumns(index, *floats[:3], index, index, tokens)
    logit_edits.penalise(edited, penalised)
    draws.draw_tokens(edited, columns, status=status)
    logprobs.gather_logprobs(edited, index, num_top=2)


if __name__ == "__main__":
    driver.set_active(NoDriver(90))
    torch.cuda.get_device_capability = lambda device=None: (9, 0)
    JITFunction.run = lambda kernel, *args, **kwargs: _note_key(kernel, *args, **kwargs)
    with FakeTensorMode():
        for num_tokens, width in product(NUM_TOKENS, (1, 3, 16, 100)):
            for num_seqs in sorted({1, num_tokens}):
                run_model(num_tokens, num_seqs, width)
            run_sampling(num_tokens, longest=7 * width)
        for num_tokens in (*NUM_TOKENS, 65, 80, 511, 512, 513, 528, 8192):
            run_experts(num_tokens)
    print(json.dumps({name: len(keys) for name, keys in found.items()}))
