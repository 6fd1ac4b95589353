"""Log probabilities of tokens under the model's own logits, with ranks and the likeliest tokens."""

import numpy as np
import torch
from torch import Tensor

from gpu_worker.batch.arrays import Int64Array
from gpu_worker.batch.batch import Logprobs
from gpu_worker.batch.sampling_rows import TokenRuns
from signalbox_kernels import ops


def report(
    logits: Tensor, tokens: Tensor, *, rows: Int64Array, num_logprobs: Int64Array
) -> list[Logprobs]:
    """Returns the log probability, rank and alternatives of one token of each row.

    Args:
        logits: [num_rows, vocab_size] float32.
        tokens: [num_rows] int64.
        rows: [num_rows], what `row` says of each.
        num_logprobs: [num_rows], how many of the likeliest tokens each names.
    """
    if not len(rows):
        return []
    num_top = min(int(num_logprobs.max()), logits.shape[1])
    found = ops.gather_logprobs(logits, tokens, num_top=num_top)
    columns = zip(
        rows.tolist(),
        num_logprobs.tolist(),
        found.logprobs.tolist(),
        found.ranks.tolist(),
        found.top_token_ids.tolist(),
        found.top_logprobs.tolist(),
        strict=True,
    )
    return [
        Logprobs(row, logprob, rank, ids[:count], values[:count])
        for row, count, logprob, rank, ids, values in columns
    ]


def with_tokens(
    found: list[Logprobs],
    logits: Tensor,
    logprob_tokens: TokenRuns | None,
    logits_row: Int64Array | None = None,
) -> list[Logprobs]:
    """Returns `found`, with a row's run of tokens as its alternatives where the run is not empty.

    Args:
        logits: [*, vocab_size]; row i of a batch has logits[logits_row[i]], or logits[i].
        logprob_tokens: the runs of all rows of the batch; None if all are empty.
    """
    if logprob_tokens is None or not found:
        return found
    rows = np.array([one.row for one in found])
    runs = logprob_tokens.take(rows)
    asked = np.flatnonzero(runs.lengths)
    if not len(asked):
        return found
    runs = runs.take(asked)
    index = rows[asked] if logits_row is None else logits_row[rows[asked]]
    there = [torch.from_numpy(column).to(logits.device) for column in (index, runs.rows)]
    token_ids = torch.from_numpy(runs.token_ids).to(logits.device).long()
    distribution = torch.log_softmax(logits[there[0]].float(), dim=-1)
    values = np.split(distribution[there[1], token_ids].cpu().numpy(), runs.ends[:-1])
    named = np.split(runs.token_ids, runs.ends[:-1])
    reported = list(found)
    for i, ids, logprobs in zip(asked.tolist(), named, values, strict=True):
        one = found[i]
        reported[i] = one._replace(top_token_ids=ids.tolist(), top_logprobs=logprobs.tolist())
    return reported
