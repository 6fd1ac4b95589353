"""Log probabilities of tokens under the model's own logits, with ranks and the likeliest tokens."""

from torch import Tensor

from gpu_worker.sample_rows import Int64Array
from gpu_worker.step import Logprobs


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
    table = logits.log_softmax(dim=-1)
    of_token = table.gather(1, tokens[:, None])
    ranks = (table >= of_token).sum(dim=-1).tolist()
    top = table.topk(min(int(num_logprobs.max()), table.shape[1]))
    columns = zip(
        rows.tolist(),
        num_logprobs.tolist(),
        of_token.flatten().tolist(),
        ranks,
        top.indices.tolist(),
        top.values.tolist(),
        strict=True,
    )
    return [
        Logprobs(row, logprob, rank, ids[:count], values[:count])
        for row, count, logprob, rank, ids, values in columns
    ]
