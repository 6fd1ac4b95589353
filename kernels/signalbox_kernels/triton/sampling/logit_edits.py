"""Edits logits before sampling: forbidden tokens, biases, and penalties for earlier tokens.

Rows are copied, because log probabilities are of the model's own logits. After the copy only the
named tokens are changed. How often a token occurs is counted in a table of zeros; the program that
reads a count resets it to zero, so each token of a row is penalised once, however often it occurs.
The penalties are those of signalbox_worker/sampling/logits_processors.py.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.sampling import DrawStatus
from signalbox_kernels.triton.launch import check, check_floats, check_tensors

_LOGITS_AT_ONCE = 4096
_TOKENS_AT_ONCE = 1024
_ROWS_AT_ONCE = 32
"""Rows whose tokens are counted at once: bounds the memory of counts."""
_IN_PROMPT = tl.constexpr(1 << 30)  # beside the number of times that the output has a token
_NOT_FINITE = tl.constexpr(DrawStatus.NOT_FINITE.value)


class PenaltyColumns(NamedTuple):
    """The penalised rows; all [num_penalised] and on the device of the logits."""

    row: Tensor
    """int64, which of the edited rows."""
    presence: Tensor
    """float32; as are the next two."""
    frequency: Tensor
    repetition: Tensor
    num_prompt: Tensor
    """int64, how many of its tokens are the prompt's."""
    num_tokens: Tensor
    """int64."""
    tokens: Tensor
    """[num_penalised, longest] int32; what is past a row's num_tokens is ignored."""


@triton.jit
def _copy_rows_kernel(
    logits, logits_row, mask_of_row, masks, out, status, row_stride, mask_stride, vocab_size,
    HAS_MASKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    logits += tl.load(logits_row + row) * row_stride
    out += row * vocab_size
    column = tl.arange(0, CHUNK)
    num_bad = tl.zeros([], tl.int32)
    mask_index = tl.full([], -1, tl.int64)
    if HAS_MASKS:
        mask_index = tl.load(mask_of_row + row).to(tl.int64)
    for start in range(0, vocab_size, CHUNK):
        token = start + column
        is_token = token < vocab_size
        x = tl.load(logits + token, is_token, 0.0).to(tl.float32)
        num_bad += tl.sum(((x != x) | (tl.abs(x) == float("inf"))).to(tl.int32), axis=0)
        if HAS_MASKS:
            word = tl.load(
                masks + mask_index * mask_stride + token // 32, is_token & (mask_index >= 0), -1
            )
            x = tl.where((word >> (token % 32)) & 1 != 0, x, float("-inf"))
        tl.store(out + token, x, is_token)
    tl.store(status + row, tl.where(num_bad > 0, _NOT_FINITE, 0).to(tl.uint8))


@triton.jit(do_not_specialize=["count"])
def _add_kernel(logits, rows, token_ids, values, row_stride, count, PAIRS: tl.constexpr):
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    is_pair = pair < count
    row = tl.load(rows + pair, is_pair, 0)
    token = tl.load(token_ids + pair, is_pair, 0)
    value = tl.load(values + pair, is_pair, 0.0)
    tl.atomic_add(logits + row * row_stride + token, value, is_pair)  # a token may have two pairs


@triton.jit(do_not_specialize=["token_stride"])
def _count_kernel(
    tokens, num_tokens, num_prompt, counts, token_stride, vocab_size, TOKENS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    is_known = index < tl.load(num_tokens + row)
    is_prompt = index < tl.load(num_prompt + row)
    count = counts + row * vocab_size + tl.load(tokens + row * token_stride + index, is_known, 0)
    tl.atomic_or(count, _IN_PROMPT, is_known & is_prompt)
    tl.atomic_add(count, 1, is_known & ~is_prompt)


@triton.jit(do_not_specialize=["token_stride"])
def _penalise_kernel(
    logits, rows, presence, frequency, repetition, num_tokens, tokens, counts,
    row_stride, token_stride, vocab_size, TOKENS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    index = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    is_known = index < tl.load(num_tokens + row)
    token = tl.load(tokens + row * token_stride + index, is_known, 0)
    count = tl.atomic_xchg(counts + row * vocab_size + token, 0, is_known)
    is_first = is_known & (count != 0)  # other programs find the first one's zero
    times = (count & (_IN_PROMPT - 1)).to(tl.float32)
    place = logits + tl.load(rows + row) * row_stride + token
    x = tl.load(place, is_first, 0.0)
    by = tl.load(repetition + row)
    x = tl.where(x > 0, tl.div_rn(x, by), x * by)
    x = x - tl.load(frequency + row) * times
    x = x - tl.where(times > 0, tl.load(presence + row), 0.0)
    tl.store(place, x, is_first)


def copy_rows(
    logits: Tensor, logits_row: Tensor, *, mask_of_row: Tensor | None, masks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Copies rows to edit, with -inf where a mask does not allow a token.

    Args:
        logits: [*, vocab_size], a model's own.
        logits_row: [num_rows] int64.
        mask_of_row: [num_rows] int32, index into `masks`; negative allows every token.
        masks: [*, ceil(vocab_size / 32)] int32: bit t % 32 of word t // 32 stands for token t.

    Returns:
        [num_rows, vocab_size] float32, and [num_rows] uint8: NOT_FINITE where a logit is not.
    """
    op = "copy_rows"
    check_tensors(op, logits, logits_row)
    check_floats(op, logits)
    num_rows, vocab_size = len(logits_row), logits.shape[1]
    out = torch.empty(num_rows, vocab_size, dtype=torch.float32, device=logits.device)
    status = torch.empty(num_rows, dtype=torch.uint8, device=logits.device)
    if num_rows:
        _copy_rows_kernel[(num_rows,)](
            logits,
            logits_row,
            mask_of_row,
            masks,
            out,
            status,
            logits.stride(0),
            0 if masks is None else masks.stride(0),
            vocab_size,
            HAS_MASKS=masks is not None,
            CHUNK=min(_LOGITS_AT_ONCE, triton.next_power_of_2(vocab_size)),
            num_warps=8,
        )
    return out, status


def add_to_tokens(logits: Tensor, rows: Tensor, token_ids: Tensor, values: Tensor) -> None:
    """Adds biases in place; one of -inf suppresses its token.

    Args:
        logits: [num_rows, vocab_size] float32, contiguous; written.
        rows, token_ids: [num_pairs] int64 and int32.
        values: [num_pairs] float32.
    """
    op = "add_to_tokens"
    check_tensors(op, logits, rows, token_ids, values)
    check(logits.dtype is torch.float32 is values.dtype, f"{op}: logits and values must be float32")
    check(len(rows) == len(token_ids) == len(values), f"{op}: there must be one value a token")
    if len(rows):
        _add_kernel[(triton.cdiv(len(rows), _TOKENS_AT_ONCE),)](
            logits, rows, token_ids, values, logits.stride(0), len(rows), PAIRS=_TOKENS_AT_ONCE
        )


def penalise(logits: Tensor, columns: PenaltyColumns) -> None:
    """Applies penalties for repetition, frequency and presence in place.

    Args:
        logits: [num_rows, vocab_size] float32; written.
    """
    op = "penalise"
    check_tensors(op, logits, *columns)
    check(logits.dtype is torch.float32, f"{op}: logits are {logits.dtype}, not float32")
    (num_penalised, longest), vocab_size = columns.tokens.shape, logits.shape[1]
    check(columns.tokens.is_contiguous(), f"{op}: the rows of tokens must be contiguous")
    if not num_penalised or not longest:
        return
    for parts in zip(*(column.split(_ROWS_AT_ONCE) for column in columns), strict=True):
        part = PenaltyColumns(*parts)
        counts = torch.zeros(len(part.row), vocab_size, dtype=torch.int32, device=logits.device)
        grid = (len(part.row), triton.cdiv(longest, _TOKENS_AT_ONCE))
        _count_kernel[grid](
            part.tokens,
            part.num_tokens,
            part.num_prompt,
            counts,
            longest,
            vocab_size,
            TOKENS=_TOKENS_AT_ONCE,
        )
        _penalise_kernel[grid](
            logits,
            part.row,
            part.presence,
            part.frequency,
            part.repetition,
            part.num_tokens,
            part.tokens,
            counts,
            logits.stride(0),
            longest,
            vocab_size,
            TOKENS=_TOKENS_AT_ONCE,
        )
