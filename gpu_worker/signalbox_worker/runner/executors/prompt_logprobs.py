"""Reports log probabilities of prompt tokens, some rows at a time.

Logits are vocabulary-sized, and a prompt has a row for each of its tokens: all at once they would
take more memory than the step itself. How logits are made of tokens is the step's to say.
"""

from collections.abc import Callable, Iterator
from typing import TypeVar

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Logprobs
from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.sampling.sampler import Sampler

LogitsT = TypeVar("LogitsT")

ROWS_AT_ONCE = 64
"""No more than a native program always has room for, else it would drop what the step has left."""


def parts_of(rows: PromptRows) -> Iterator[slice]:
    """Yields the rows that are computed at once."""
    for start in range(0, len(rows.targets), ROWS_AT_ONCE):
        yield slice(start, start + ROWS_AT_ONCE)


def prompt_logprobs(
    rows: PromptRows, sampler: Sampler[LogitsT], logits_of: Callable[[Int64Array], LogitsT]
) -> list[Logprobs]:
    """Returns one for each row, in their order.

    Args:
        logits_of: Makes [num_tokens, vocab_size] of tokens of the step, which it may overwrite
            the next time.
    """
    found: list[Logprobs] = []
    for part in parts_of(rows):
        logits = logits_of(rows.token_index[part])
        part_found = sampler.logprobs(logits, rows.targets[part], rows.num_logprobs[part])
        found += [one._replace(row=part.start + one.row) for one in part_found]
    return found
