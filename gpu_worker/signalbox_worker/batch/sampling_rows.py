"""The draws of a batch as packed columns: what is drawn, under which parameters and rules.

Parts that few rows use (rules, penalties) are None when no row of the batch does, and otherwise
hold a run for each row, so that neither Python nor a kernel touches a row that uses none of it.
"""

from dataclasses import dataclass, fields
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.sampling_params import GREEDY_BELOW
from signalbox_kernels.filters import DTYPES, NEUTRAL, Filters
from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array

NO_LOGPROBS = -1


class TokenRuns(NamedTuple):
    """A run of token ids for each row; that of row i is token_ids[ends[i - 1]:ends[i]]."""

    ends: Int32Array
    """[num_rows]."""
    token_ids: Int32Array

    @property
    def lengths(self) -> Int32Array:
        return np.diff(self.ends, prepend=np.int32(0))

    @property
    def rows(self) -> Int64Array:
        """Returns the row of each token id."""
        return np.repeat(np.arange(len(self.ends)), self.lengths)

    def pick(self, picked: Int64Array) -> tuple["TokenRuns", Int64Array]:
        """Returns the runs of some rows, and the index that each of their tokens has here."""
        lengths = self.lengths[picked]
        first = self.ends[picked] - lengths
        ends = np.cumsum(lengths, dtype=np.int32)
        index = np.arange(int(lengths.sum())) + np.repeat(first - (ends - lengths), lengths)
        return TokenRuns(ends, self.token_ids[index]), index

    def take(self, picked: Int64Array) -> "TokenRuns":
        return self.pick(picked)[0]


NO_RUNS = TokenRuns(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))
"""Runs of no rows."""


def token_runs(
    rows: Int64Array, token_ids: NDArray[np.integer], num_rows: int
) -> tuple[TokenRuns, Int64Array]:
    """Groups (row, token) pairs by row; also returns the order that the pairs came to be in."""
    order = np.argsort(rows, kind="stable")
    ends = np.bincount(rows, minlength=num_rows).cumsum(dtype=np.int32)
    return TokenRuns(ends, token_ids[order].astype(np.int32)), order


class Biases(NamedTuple):
    """Biases that are added to logits."""

    runs: TokenRuns
    values: FloatArray
    """One for each of runs.token_ids."""

    def take(self, picked: Int64Array) -> "Biases":
        runs, index = self.runs.pick(picked)
        return Biases(runs, self.values[index])


class AllowedTokens(NamedTuple):
    """Masks of the tokens that may be drawn: bit t % 32 of word t // 32 stands for token t."""

    mask_of_row: Int32Array
    """[num_rows], index into `masks`; negative allows every token."""
    masks: NDArray[np.uint32]
    """[num_masks, ceil(vocab_size / 32)]."""

    def take(self, picked: Int64Array) -> "AllowedTokens":
        return AllowedTokens(self.mask_of_row[picked], self.masks)


class Penalties(NamedTuple):
    """Penalties of each row, and where its tokens are: row i has seen tokens[owners[i], :position].

    Counts are taken from the tokens themselves in each step, so that nothing has to be rebuilt when
    a sequence resumes, forks or moves.
    """

    presence: FloatArray
    frequency: FloatArray
    repetition: FloatArray
    num_prompt: Int64Array
    owners: Int64Array
    """Row of `tokens`; the others are all [num_rows], too."""
    tokens: Int32Array
    """[*, longest sequence]; not a copy."""

    def take(self, picked: Int64Array) -> "Penalties":
        return Penalties(
            presence=self.presence[picked],
            frequency=self.frequency[picked],
            repetition=self.repetition[picked],
            num_prompt=self.num_prompt[picked],
            owners=self.owners[picked],
            tokens=self.tokens,
        )

    @property
    def is_used(self) -> NDArray[np.bool_]:
        """[num_rows], whether a row has any."""
        used = (self.presence != 0) | (self.frequency != 0) | (self.repetition != 1)
        return cast(NDArray[np.bool_], used)


def neutral_filters(num_rows: int) -> Filters[NDArray[Any]]:
    """Returns filters that keep everything, in arrays of their own."""
    kinds = zip(NEUTRAL, DTYPES, strict=True)
    return Filters._make([np.full(num_rows, value, dtype) for value, dtype in kinds])


@dataclass(slots=True, kw_only=True)
class SampleRows:
    """The draws of a batch: row i is drawn from the logits of token `token_index[i]`.

    All arrays are [num_rows]. Rows of one sequence are neighbours, in ascending order of branch.
    """

    seq_ids: Int64Array
    token_index: Int64Array
    """Index into the batch's tokens."""
    branch: Int64Array
    position: Int64Array
    """Index that the drawn token will have in its sequence."""
    temperature: FloatArray
    filters: Filters[NDArray[Any]]
    seed: NDArray[np.uint64]
    num_logprobs: Int64Array
    """Alternatives to report; NO_LOGPROBS for rows that report nothing."""
    suppressed: TokenRuns | None = None
    """Tokens that a row must not sample: they would end it too early, or complete a bad word."""
    biases: Biases | None = None
    allowed: AllowedTokens | None = None
    penalties: Penalties | None = None
    logprob_tokens: TokenRuns | None = None
    """Reported instead of the likeliest tokens, of rows whose run is not empty."""
    returns_logits: NDArray[np.bool_] | None = None
    """[num_rows], whether the logit of the drawn token is returned; None if that of none is."""

    def __len__(self) -> int:
        return len(self.token_index)

    def take(self, picked: Int64Array) -> "SampleRows":
        """Returns some of the rows, renumbered."""
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                columns[column.name] = value[picked]
            else:
                columns[column.name] = None if value is None else value.take(picked)
        return SampleRows(**columns)

    def drawing_tokens(self) -> tuple[Int64Array, Int64Array | None]:
        """Returns the tokens that are drawn from, once each and ascending, and each row's index
        there; None if row i is drawn from token i."""
        index = self.token_index
        if (index[1:] > index[:-1]).all():
            return index, None
        return np.unique(index, return_inverse=True)

    @property
    def is_edited(self) -> NDArray[np.bool_]:
        """[num_rows], whether a row's logits are changed by more than suppressed tokens."""
        edited = np.zeros(len(self), dtype=np.bool_)
        if self.biases is not None:
            edited |= self.biases.runs.lengths > 0
        if self.allowed is not None:
            edited |= self.allowed.mask_of_row >= 0
        if self.penalties is not None:
            edited |= self.penalties.is_used
        return edited

    @property
    def needs_logits(self) -> NDArray[np.bool_]:
        """[num_rows], whether a row asks for more than its likeliest token not suppressed."""
        random = self.temperature >= GREEDY_BELOW
        return random | (self.num_logprobs >= 0) | self.is_edited

    @property
    def reads_logits(self) -> NDArray[np.bool_]:
        """[num_rows], whether the logits of a row are read, by the sampler or for the result."""
        if self.returns_logits is None:
            return self.needs_logits
        return self.needs_logits | self.returns_logits


class WantedLogits(NamedTuple):
    """The logits that the sampler reads, for a shard that computes a part of them."""

    tokens: Int64Array
    """Tokens whose logits it reads in full, ascending; of the other rows it takes the likeliest."""
    suppressed: TokenRuns | None
    """Tokens that may not be the likeliest one, of each row."""


@dataclass(slots=True, kw_only=True)
class PromptRows:
    """Tokens of prompts whose log probabilities are reported; neighbours are of one sequence.

    Row i is the probability of `targets[i]` after token `token_index[i]` of the batch.
    """

    seq_index: Int64Array
    """[num_runs], index of each run's sequence in the batch."""
    first_position: Int64Array
    """[num_runs], position in its sequence of a run's first target."""
    lengths: Int64Array
    """[num_runs], rows of each run."""
    token_index: Int64Array
    """[num_rows], ascending; also of the columns that follow."""
    targets: Int32Array
    num_logprobs: Int64Array
