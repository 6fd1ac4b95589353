"""Draws of the simulated model, from what it has read through its block tables.

Nothing is drawn from logits: penalties, biases and filters change nothing, what may be drawn does.
Logits that are returned are made up of what was read and the token.
"""

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.batch.batch import BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.batch.sequence_failures import NONE_LEFT
from signalbox_worker.runner.simulated.hashing import SALT, TOKEN, UInt64Array, mix


def draw(sums: UInt64Array, rows: SampleRows, *, vocab_size: int) -> BatchOutput:
    """Draws the next token of each row, from what it has read through its block table.

    Args:
        sums: [num_rows], a weighted sum over the context of each row.
    """
    salt = mix(rows.seed * np.uint64(SALT) + rows.branch.astype(np.uint64))
    key = np.where(rows.temperature > 0, salt, np.uint64(0))
    best = (mix(sums ^ key) % np.uint64(vocab_size)).astype(np.int32)
    drawn, failed = best.copy(), dict[int, str]()
    if rows.suppressed is not None or rows.allowed is not None:
        for row, allowed in enumerate(allowed_tokens(rows, vocab_size)):
            drawn[row] = _next_allowed(int(best[row]), allowed)
            if not allowed.any():
                failed[row] = NONE_LEFT
    logprobs = [
        made_up_logprobs(row, best=int(best[row]), token=int(drawn[row]), num=num, size=vocab_size)
        for row, num in enumerate(rows.num_logprobs.tolist())
        if num >= 0 and row not in failed
    ]
    logprobs = _with_tokens(logprobs, rows, best, size=vocab_size)
    return BatchOutput(
        token_ids=drawn,
        logprobs=logprobs,
        failed=failed,
        logits=None if rows.returns_logits is None else made_up_logits(sums, drawn, rows),
    )


def made_up_logits(sums: UInt64Array, token_ids: NDArray[np.int32], rows: SampleRows) -> FloatArray:
    """Returns logits in [0, 16) of the drawn tokens, from what their rows have read; NaN of rows
    that return none."""
    assert rows.returns_logits is not None, "else there is nothing to make up"
    mixed = mix(sums + mix(token_ids.astype(np.uint64) * np.uint64(TOKEN)))
    logits = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 20)
    return np.where(rows.returns_logits, logits, np.float32(np.nan))


def allowed_tokens(rows: SampleRows, vocab_size: int) -> NDArray[np.bool_]:
    """Returns [num_rows, vocab_size], what may be drawn."""
    allowed = np.ones((len(rows), vocab_size), dtype=np.bool_)
    if rows.allowed is not None:
        masked = rows.allowed.mask_of_row >= 0
        words = rows.allowed.masks[rows.allowed.mask_of_row[masked]].astype("<u4")
        bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
        allowed[masked] = bits[:, :vocab_size]
    if rows.suppressed is not None:
        allowed[rows.suppressed.rows, rows.suppressed.token_ids] = False
    return allowed


def _next_allowed(token_id: int, allowed: NDArray[np.bool_]) -> int:
    """Returns the first allowed token from `token_id` on, or itself if there is none."""
    return (token_id + int(np.argmax(np.roll(allowed, -token_id)))) % len(allowed)


def made_up_logprobs(row: int, *, best: int, token: int, num: int, size: int) -> Logprobs:
    """Makes up a distribution: the best token, then the ids after it, each e times less likely."""
    likely = -0.5 - best / size / 2  # e^-0.5 and all that follows it stay under 1 together
    rank = (token - best) % size
    return Logprobs(
        row=row,
        logprob=likely - rank,
        rank=rank + 1,
        top_token_ids=[(best + i) % size for i in range(num)],
        top_logprobs=[likely - i for i in range(num)],
    )


def _with_tokens(
    found: list[Logprobs], rows: SampleRows, best: NDArray[np.int32], *, size: int
) -> list[Logprobs]:
    """Replaces the likeliest tokens of a row by those that it names."""
    if rows.logprob_tokens is None:
        return found
    runs = np.split(rows.logprob_tokens.token_ids, rows.logprob_tokens.ends[:-1])
    named = [
        [
            made_up_logprobs(
                one.row, best=int(best[one.row]), token=token, num=0, size=size
            ).logprob
            for token in runs[one.row].tolist()
        ]
        for one in found
    ]
    return [
        one._replace(top_token_ids=runs[one.row].tolist(), top_logprobs=values) if values else one
        for one, values in zip(found, named, strict=True)
    ]
