"""Log probabilities of tokens under the model's own logits, with ranks and other tokens.

A device computes them behind the draws (`compute`); the host makes results of them (`read`).
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Logprobs
from signalbox_worker.batch.sampling_rows import NO_RUNS, SampleRows, TokenRuns

Send = Callable[..., Sequence[Tensor]]
"""Returns arrays on the device."""


class ReportedRows(NamedTuple):
    """The rows of a batch that report log probabilities; all fields have one length."""

    rows: Int64Array
    num_logprobs: Int64Array
    """Number of the likeliest tokens that each reports."""
    named: TokenRuns = NO_RUNS
    """Tokens that are reported instead, of rows whose run is not empty; no run if none has one."""

    @property
    def with_names(self) -> Int64Array:
        """Returns the indices of those whose run is not empty."""
        return np.flatnonzero(self.named.lengths)


NOTHING_REPORTED = ReportedRows(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64))


def reported_rows(rows: SampleRows) -> ReportedRows:
    index = np.flatnonzero(rows.num_logprobs >= 0)
    if not len(index):
        return NOTHING_REPORTED
    named = NO_RUNS if rows.logprob_tokens is None else rows.logprob_tokens.take(index)
    return ReportedRows(index, rows.num_logprobs[index], named)


def compute(
    logits: Tensor, tokens: Tensor, reported: ReportedRows, send: Send | None = None
) -> list[Tensor]:
    """Enqueues what `read` takes.

    Args:
        logits: [num_reported, vocab_size] float32.
        tokens: [num_reported] int64; any for rows that have failed.
        send: is needed where rows name tokens.
    """
    vocab_size = logits.shape[1]
    num_top = min(int(reported.num_logprobs.max(initial=0)), vocab_size)
    found = ops.gather_logprobs(logits, tokens.clamp(0, vocab_size - 1), num_top=num_top)
    index = reported.with_names
    if not len(index):
        return [*found]
    assert send is not None
    runs = reported.named.take(index)
    picked, of_run, token_ids = send(index, runs.rows, runs.token_ids.astype(np.int64))
    distribution = torch.log_softmax(logits.index_select(0, picked), dim=-1)
    return [*found, distribution[of_run, token_ids]]


def read(
    reported: ReportedRows, computed: Sequence[Tensor], failed: Collection[int] = ()
) -> list[Logprobs]:
    """Returns the log probability, rank and alternatives of each row but those that failed."""
    if not len(reported.rows):
        return []
    of_drawn, of_names = computed[:4], computed[4:]
    columns = zip(
        reported.rows.tolist(),
        reported.num_logprobs.tolist(),
        *(column.tolist() for column in of_drawn),
        strict=True,
    )
    found = [
        Logprobs(row, logprob, rank, top_token_ids[:count], top_logprobs[:count])
        for row, count, logprob, rank, top_logprobs, top_token_ids in columns
    ]
    if of_names:
        index = reported.with_names
        runs = reported.named.take(index)
        token_ids = np.split(runs.token_ids, runs.ends[:-1])
        values = np.split(of_names[0].cpu().numpy(), runs.ends[:-1])
        for i, ids, logprobs in zip(index.tolist(), token_ids, values, strict=True):
            found[i] = found[i]._replace(top_token_ids=ids.tolist(), top_logprobs=logprobs.tolist())
    return [one for one in found if one.row not in failed]


def of_tokens(logits: Tensor, targets: Tensor, num_logprobs: Int64Array) -> list[Logprobs]:
    """Returns the log probability of a given token, [num_rows] int64, for each row of logits."""
    reported = ReportedRows(np.arange(len(targets)), num_logprobs)
    return read(reported, compute(logits.float(), targets, reported))
