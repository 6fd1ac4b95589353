"""Tries a backend beside PyTorch's on the device at hand, before `auto` trusts it there.

Two sequences are prefilled together and then decode, with random queries, keys and values, once for
each kind of layer (full, or with a window), and with rotation, which a backend may do itself.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gpu_worker.attention.backend import AttentionBackend, AttentionShape
from gpu_worker.attention.torch_backend import TorchAttention
from gpu_worker.batch.batch import Batch
from gpu_worker.batch.largest_batch import largest_batch
from gpu_worker.layers import AttentionPlan
from gpu_worker.layers.rotary import Angles

_LENGTHS = (37, 5)
_TOLERANCE = 0.05
"""Tolerance for values around 1: wide enough for bfloat16 and TF32, far below the effect of a
wrong index."""


def fault_of(
    factory: Callable[[AttentionShape], AttentionBackend], shape: AttentionShape
) -> str | None:
    """Returns what is wrong with the backend that `factory` makes, or None.

    That is all that a compiler or a driver said, which may be many lines.
    """
    windows = tuple(dict.fromkeys(shape.sliding_windows))  # a layer of each kind
    trial = replace(shape, num_layers=len(windows), sliding_windows=windows)
    try:
        worst = _largest_difference(factory(trial), trial)
    except Exception as error:  # whatever a compiler or a driver raises
        return f"{type(error).__name__}: {error}"
    return None if worst <= _TOLERANCE else f"its results are off by {worst:.2g}"


def _largest_difference(backend: AttentionBackend, shape: AttentionShape) -> float:
    """Returns NaN where a result is none."""
    reference = TorchAttention(shape)
    num_blocks = sum(_blocks(length + 1, shape) for length in _LENGTHS)
    for each in (backend, reference):
        pool = torch.zeros(num_blocks, each.block_bytes, dtype=torch.uint8, device=shape.device)
        each.bind(pool)
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch in _batches(shape):
        plans = [each.plan(batch) for each in (backend, reference)]
        for layer in range(shape.num_layers):
            query, key_value = (
                torch.randn(len(batch.token_ids), *size, generator=generator).to(
                    shape.device, shape.dtype
                )
                for size in (
                    (shape.num_heads, shape.head_size),
                    (2, shape.num_kv_heads, shape.head_size),
                )
            )
            for attended in (_plainly, _rotated):
                out, expected = (attended(plan, query, key_value, layer) for plan in plans)
                worst = float(np.maximum(worst, float((out - expected).abs().max())))
    return worst


def _plainly(plan: AttentionPlan, query: Tensor, key_value: Tensor, layer: int) -> Tensor:
    return plan(query, key_value, layer=layer).float()


def _rotated(plan: AttentionPlan, query: Tensor, key_value: Tensor, layer: int) -> Tensor:
    """Attends through the plan's own rotation, if it has one."""
    half = torch.linspace(0.0, 3.0, query.shape[2] // 2, dtype=torch.float32)
    cos, sin = half.cos(), half.sin()
    angles = Angles(
        *(
            torch.cat(halves).expand(len(query), 1, -1).to(query)
            for halves in ((cos, cos), (-sin, sin))
        )
    )
    query, key_value = query.clone(), key_value.clone()
    attend_rotated = getattr(plan, "attend_rotated", None)
    if attend_rotated is not None:
        out: Tensor = attend_rotated(query, key_value, angles, layer=layer)
        return out.float()
    angles.rotate(query)
    angles.rotate(key_value[:, 0])
    return _plainly(plan, query, key_value, layer)


def _batches(shape: AttentionShape) -> Iterator[Batch]:
    """Yields a prefill of all sequences, then a step in which each decodes."""
    yield _batch(shape, starts=(0,) * len(_LENGTHS), ends=_LENGTHS)
    yield _batch(shape, starts=_LENGTHS, ends=tuple(length + 1 for length in _LENGTHS))


def _batch(shape: AttentionShape, *, starts: tuple[int, ...], ends: tuple[int, ...]) -> Batch:
    size, num_seqs = shape.block_size, len(_LENGTHS)
    counts = [_blocks(length + 1, shape) for length in _LENGTHS]
    tables = np.zeros((num_seqs, max(counts)), np.int32)
    slots, positions = [], []
    for seq, (start, end) in enumerate(zip(starts, ends, strict=True)):
        tables[seq, : counts[seq]] = np.arange(counts[seq]) + sum(counts[:seq])
        new = np.arange(start, end)
        positions.append(new)
        slots.append(tables[seq, new // size].astype(np.int64) * size + new % size)
    lengths = np.array(ends) - np.array(starts)
    rows = largest_batch(
        num_tokens=num_seqs, num_seqs=num_seqs, max_model_len=2, block_size=size
    ).rows
    return Batch(
        token_ids=np.zeros(lengths.sum(), np.int64),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_start=np.concatenate(([0], np.cumsum(lengths))),
        context_lens=np.array(ends),
        block_tables=tables,
        rows=rows,
    )


def _blocks(num_tokens: int, shape: AttentionShape) -> int:
    return -(-num_tokens // shape.block_size)
