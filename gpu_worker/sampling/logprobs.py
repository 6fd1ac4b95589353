"""Log probabilities of tokens under the model's own logits, with ranks and the likeliest tokens."""

from torch import Tensor

from gpu_worker.sampling.sample_rows import Int64Array
from gpu_worker.step import Logprobs
from signalbox_kernels import ops


def report(
    logits: Tensor, tokens: Tensor, *, rows: Int64Array, num_logprobs: Int64Array
) -> list[Logprobs]:
    """Returns what is known of one token of each row.

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
