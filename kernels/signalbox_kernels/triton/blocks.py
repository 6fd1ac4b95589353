"""Moves whole KV blocks: within the device's pool by a kernel, between device and host by copies.

Neighbours become runs, whatever order they are given in, and a run is one copy: within the device
a row of programs of one launch, between devices one asynchronous transfer by the copy engine.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.launch import check, check_tensors, is_interpreted

_WORDS_PER_PROGRAM = 2048
_RUNS_PER_LAUNCH = 32768
"""At most 65,535, which is all that the second dimension of a grid takes; the first one has 31
bits."""
_WORD_TYPES = (torch.int64, torch.int32, torch.int16, torch.uint8)


@triton.jit
def _copy_runs_kernel(src_pool, dst_pool, runs, words_per_block, WORDS: tl.constexpr):
    run = runs + tl.program_id(1) * 3
    source, target = tl.load(run), tl.load(run + 1)  # int64: pools exceed 2^31 words
    num_words = tl.load(run + 2) * words_per_block
    word = tl.program_id(0).to(tl.int64) * WORDS + tl.arange(0, WORDS)
    mask = word < num_words
    words = tl.load(src_pool + source * words_per_block + word, mask=mask)
    tl.store(dst_pool + target * words_per_block + word, words, mask=mask)


def block_runs(src: Tensor, dst: Tensor) -> Tensor:
    """Joins copies of neighbouring blocks to neighbouring blocks.

    Args:
        src, dst: [num_copies] int64 on the CPU.

    Returns:
        [num_runs, 3] int64: first source, first target, number of blocks; sources ascend.
    """
    if not len(src):
        return torch.empty(0, 3, dtype=torch.int64)
    by_target = torch.argsort(dst)
    order = by_target[torch.argsort(src[by_target], stable=True)]
    src, dst = src[order], dst[order]
    breaks = (src.diff() != 1) | (dst.diff() != 1)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), breaks.nonzero().flatten() + 1])
    lengths = torch.cat([starts, torch.tensor([len(src)])]).diff()
    return torch.stack([src[starts], dst[starts], lengths], dim=1)


def copy_blocks(pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies blocks within a pool; `ops.copy_blocks` is the contract."""
    _check("copy_blocks", pool, pool, src, dst)
    check_tensors("copy_blocks", pool)
    runs = block_runs(src, dst)
    if len(runs):
        _launch(pool, pool, runs, longest=int(runs[:, 2].max()))


def swap_blocks(src_pool: Tensor, dst_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    """Copies blocks between pools, one transfer a run; `ops.swap_blocks` is the contract.

    Asynchronous on the current stream where the pool in RAM is pinned.
    """
    _check("swap_blocks", src_pool, dst_pool, src, dst)
    for source, target, length in block_runs(src, dst).tolist():
        dst_pool[target : target + length].copy_(
            src_pool[source : source + length], non_blocking=True
        )


def _check(op: str, src_pool: Tensor, dst_pool: Tensor, src: Tensor, dst: Tensor) -> None:
    check(src.shape == dst.shape and src.dim() == 1, f"{op}: src and dst must be of one length")
    check(
        src.device.type == "cpu" and dst.device.type == "cpu",
        f"{op}: src and dst must be on the CPU, where runs are found",
    )
    check(src_pool.is_contiguous() and dst_pool.is_contiguous(), f"{op}: pools must be contiguous")
    check(
        src_pool.shape[1] == dst_pool.shape[1],
        f"{op}: blocks are of {src_pool.shape[1]} and {dst_pool.shape[1]} bytes",
    )
    for blocks, pool in ((src, src_pool), (dst, dst_pool)):
        inside = not len(blocks) or (int(blocks.min()) >= 0 and int(blocks.max()) < len(pool))
        check(inside, f"{op}: a block is outside its pool of {len(pool)}")


def _launch(src_pool: Tensor, dst_pool: Tensor, runs: Tensor, *, longest: int) -> None:
    """`longest` is the number of blocks of the longest run."""
    word = next(t for t in _WORD_TYPES if src_pool.shape[1] % t.itemsize == 0)
    source, target = src_pool.view(word), dst_pool.view(word)
    if not is_interpreted():
        runs = runs.pin_memory()  # a copy from pageable memory would wait for the stream
    programs = triton.cdiv(longest * source.shape[1], _WORDS_PER_PROGRAM)
    for part in runs.to(source.device, non_blocking=True).split(_RUNS_PER_LAUNCH):
        _copy_runs_kernel[(programs, len(part))](
            source, target, part, source.shape[1], WORDS=_WORDS_PER_PROGRAM
        )
