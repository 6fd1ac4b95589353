"""Log probabilities of one token a row and its rank, without a table of the whole vocabulary.

A program takes a row in two passes: the greatest logit with the sum of exponentials relative to it
(the online softmax of Milakov and Gimelshein, 2018), then how many logits are no less than the
token's. The likeliest tokens are PyTorch's topk, which sorts no row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.torch.row_ops import GatheredLogprobs
from signalbox_kernels.triton.launch import check, check_floats, check_tensors

_LOGITS_AT_ONCE = 4096


@triton.jit
def _gather_logprobs_kernel(
    logits, tokens, logprobs, ranks, normalisers, row_stride, vocab_size, LOGITS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    column = tl.arange(0, LOGITS)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, vocab_size, LOGITS):
        chunk = tl.load(logits + start + column, start + column < vocab_size, float("-inf"))
        new_top = tl.maximum(top, tl.max(chunk, axis=0))
        shift = tl.where(new_top == float("-inf"), 0.0, new_top)  # inf - inf is NaN
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(chunk - shift), axis=0)
        top = new_top
    own = tl.load(logits + tl.load(tokens + row))
    rank = tl.zeros([], tl.int64)
    for start in range(0, vocab_size, LOGITS):
        mask = start + column < vocab_size
        chunk = tl.load(logits + start + column, mask, float("-inf"))
        rank += tl.sum(((chunk >= own) & mask).to(tl.int64), axis=0)
    normaliser = top + tl.log(total)
    tl.store(normalisers + row, normaliser)
    tl.store(logprobs + row, own - normaliser)
    tl.store(ranks + row, rank)


def gather_logprobs(logits: Tensor, tokens: Tensor, *, num_top: int) -> GatheredLogprobs:
    """Log probability, rank and the likeliest tokens; `ops.gather_logprobs` is the contract."""
    op = "gather_logprobs"
    check_tensors(op, logits, tokens)
    check_floats(op, logits)
    num_rows, vocab_size = logits.shape
    check(logits.dtype is torch.float32, f"{op}: logits are {logits.dtype}, not float32")
    check(tokens.shape == (num_rows,), f"{op}: {num_rows} rows, {len(tokens)} tokens")
    logprobs, normalisers = logits.new_empty(num_rows), logits.new_empty(num_rows, 1)
    ranks = torch.empty_like(tokens)
    if num_rows:
        _gather_logprobs_kernel[(num_rows,)](
            logits,
            tokens.contiguous(),
            logprobs,
            ranks,
            normalisers,
            logits.stride(0),
            vocab_size,
            LOGITS=min(_LOGITS_AT_ONCE, triton.next_power_of_2(vocab_size)),
        )
    top = logits.topk(num_top)
    return GatheredLogprobs(logprobs, ranks, top.values - normalisers, top.indices)
