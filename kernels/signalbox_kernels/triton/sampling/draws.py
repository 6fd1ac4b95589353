"""Draws a token from each row of logits: greedy, or under top-k, top-p, min-p and typical-p.

No row is sorted, and no weight is stored: each pass reads the logits and weighs them again. Weights
lie in [0, 1], where the bits of a float32 are in the order of its values, so a bound is searched
digit by digit (radix select, Alabi et al., 2012). A nucleus is not searched for at all: the race is
run among all, and its winner is drawn if the mass above it is within top_p; else it raises the bar
and the rest race again. That is the rejection of FlashInfer's sampling kernels (Ye et al., 2025),
and with it comes their second pivot, which halves what is left, so that the rounds are bounded. The
winner among all is, if it is in the nucleus, the winner of the nucleus, so the token is the same as
that of a sort.

Draws are those of `signalbox_kernels.random`; what filters mean, ties included, is stated by
signalbox_worker/sampling/torch_sampler.py, which this must equal. Masses are summed in float64, as
there; where the edge of a nucleus is as near as a rounding of exp, it may differ.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.filters import Filters
from signalbox_kernels.sampling import DrawStatus
from signalbox_kernels.triton.launch import check, check_floats, check_tensors, next_power_of_2
from signalbox_kernels.triton.sampling.passes import (
    best_logit,
    kth_weight_bits,
    least_kept_bits,
    mass_from,
    nucleus_race,
    typical_bounds,
)

_LOGITS_AT_ONCE = 4096
_NOT_FINITE = tl.constexpr(DrawStatus.NOT_FINITE.value)
_NONE_LEFT = tl.constexpr(DrawStatus.NONE_LEFT.value)
_GREEDY_BELOW = tl.constexpr(1e-5)


class DrawColumns(NamedTuple):
    """Sampling parameters of each row; all [num_rows] and on the device of the logits."""

    logits_row: Tensor
    """int64, index of its logits."""
    temperature: Tensor
    """float32; below 1e-5 the likeliest token is taken."""
    filters: Filters[Tensor]
    """float32, and int32 for top_k."""
    key_low: Tensor
    """int32, the low half of the row's key (`random.race_keys`)."""
    key_high: Tensor
    """int32."""

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Every column, in the kernel's order."""
        return (self.logits_row, self.temperature, *self.filters, self.key_low, self.key_high)


@triton.jit
def _draw_kernel(
    logits,
    logits_row,
    temperatures,
    top_ps,
    min_ps,
    typical_ps,
    top_ks,
    keys_low,
    keys_high,
    tokens,
    status,
    row_stride,
    vocab_size,
    CHUNK: tl.constexpr,
    IS_EDITED: tl.constexpr,
):
    row = tl.program_id(0)
    logits += tl.load(logits_row + row) * row_stride
    top, token, is_finite = best_logit(logits, vocab_size, CHUNK)
    if IS_EDITED:  # -inf is a token that must not be drawn; the rest was looked at before
        state = tl.load(status + row).to(tl.int32)
        state = tl.where((state == 0) & (top == float("-inf")), _NONE_LEFT, state)
    else:
        state = tl.where(is_finite, 0, _NOT_FINITE)
    temperature = tl.load(temperatures + row)
    if (state == 0) & (temperature >= _GREEDY_BELOW):
        scaled_top = tl.div_rn(top, temperature)
        low = tl.load(min_ps + row).to(tl.int32, bitcast=True)
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < vocab_size):
            kth = kth_weight_bits(logits, vocab_size, temperature, scaled_top, top_k, CHUNK)
            low = tl.maximum(low, kth)
        top_p = tl.load(top_ps + row)
        nucleus = tl.full([], float("inf"), tl.float64)
        if top_p < 1.0:
            total = mass_from(logits, vocab_size, temperature, scaled_top, low, CHUNK)
            nucleus = total * top_p.to(tl.float64)
        mean = tl.zeros([], tl.float32)
        farthest = tl.full([], float("inf"), tl.float32)
        typical_p = tl.load(typical_ps + row)
        if typical_p < 1.0:
            if top_p < 1.0:
                low = least_kept_bits(
                    logits, vocab_size, temperature, scaled_top, low, nucleus, CHUNK
                )
                nucleus = tl.full([], float("inf"), tl.float64)
            mean, farthest = typical_bounds(
                logits, vocab_size, temperature, scaled_top, low, typical_p, CHUNK
            )
        token = nucleus_race(
            logits,
            vocab_size,
            temperature,
            scaled_top,
            low,
            mean,
            farthest,
            nucleus,
            tl.load(keys_low + row).to(tl.uint32, bitcast=True),
            tl.load(keys_high + row).to(tl.uint32, bitcast=True),
            CHUNK,
        )
    tl.store(tokens + row, token)
    tl.store(status + row, state.to(tl.uint8))


def draw_tokens(
    logits: Tensor, columns: DrawColumns, *, status: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draws one token for each row of `columns`.

    Args:
        logits: [*, vocab_size]; a model's own, or edited ones.
        status: [num_rows] uint8 of edited logits, as `logit_edits.copy_rows` gives it; written.

    Returns:
        [num_rows] int32 tokens, and [num_rows] uint8 what became of each, a `DrawStatus`.
    """
    op = "draw_tokens"
    check_tensors(op, logits, *columns.all)
    check_floats(op, logits)
    num_rows, vocab_size = len(columns.logits_row), logits.shape[1]
    check(
        all(column.shape == (num_rows,) and column.is_contiguous() for column in columns.all),
        f"{op}: the columns must be contiguous and have one value for each of {num_rows} rows",
    )
    is_edited = status is not None
    tokens = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    if status is None:
        status = torch.empty(num_rows, dtype=torch.uint8, device=logits.device)
    if num_rows:
        _draw_kernel[(num_rows,)](
            logits,
            *columns.all,
            tokens,
            status,
            logits.stride(0),
            vocab_size,
            CHUNK=min(_LOGITS_AT_ONCE, next_power_of_2(vocab_size)),
            IS_EDITED=is_edited,
            num_warps=8,
        )
    return tokens, status
