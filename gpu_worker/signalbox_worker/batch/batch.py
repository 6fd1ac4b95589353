"""The input of a runner, and the tokens that it samples.

`SequenceTable` makes a `Batch` of a step; a `Runner` makes `BatchOutput` of the batch. Arrays are
NumPy; a runner moves them to its device.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.step_result import Stages
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array
from signalbox_worker.batch.pooling_rows import PoolingRows
from signalbox_worker.batch.sampling_rows import PromptRows, SampleRows, WantedLogits

NO_ADAPTER = -1
"""The base model, in the place of an adapter's slot."""


@dataclass(slots=True, kw_only=True)
class Batch:
    """The forward pass of one step over B sequences and T tokens, packed without padding."""

    token_ids: Int64Array
    """[T]."""
    positions: Int64Array
    """[T], index of each token in its sequence."""
    slot_mapping: Int64Array
    """[T], block * block_size + offset: where each token's K and V go; [T, G] of G > 1 groups of
    layers, in the blocks of each."""
    query_start: Int64Array
    """[B + 1]: sequence i computes tokens query_start[i]:query_start[i + 1]."""
    context_lens: Int64Array
    """[B], tokens of each sequence whose K and V exist after this step."""
    block_tables: Int32Array
    """[B, max_blocks * G], rows of a block of each group, padded with 0 past each sequence's
    blocks."""
    rows: SampleRows
    seq_ids: Int64Array | None = None
    """[B], id of each sequence; None on another rank, and in batches that are no step's."""
    prompt_rows: PromptRows | None = None
    """None if no request asks for log probabilities of the prompt tokens computed here."""
    fed_from: Int64Array | None = None
    """[T], index of the draw of the batch before that is the token; -1 if token_ids has it."""
    complete_rows: Callable[[], None] | None = None
    """Waits for the draws of the batch before, and adds to `rows` what they decide; see `complete`.
    None if the rows are complete."""
    hidden: NDArray[np.uint8] | None = None
    """[T, bytes of a row], what the pipeline stage before has computed; None on the first."""
    adapters: Int32Array | None = None
    """[T], slot of each token's adapter, or NO_ADAPTER; None if no token has one."""
    wanted: WantedLogits | None = None
    """Logits that the drawing rank reads, on another rank; None elsewhere, as the rows say it."""
    token_types: Int32Array | None = None
    """[T], segment of each token for models that tell segments apart; None if all are in 0."""
    pooling: PoolingRows | None = None
    """Rows that are pooled, on a worker that pools; None on one that generates."""
    states: StateArrays | None = None
    """States that recurrent layers read and leave behind; None of a model without."""

    def complete(self) -> None:
        """Completes `rows`, unless they are; to be called before rows are drawn."""
        if (complete_rows := self.complete_rows) is not None:
            complete_rows()
            self.complete_rows = None

    @property
    def most_queries(self) -> int:
        """Most tokens that a sequence computes."""
        return int(np.diff(self.query_start).max())


class Logprobs(NamedTuple):
    """Log probabilities of one row, of the model's own logits."""

    row: int
    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]

    @classmethod
    def unknown(cls, row: int) -> "Logprobs":
        """Returns those of a row that could not be computed."""
        return cls(row, math.nan, 0, [], [])

    @property
    def values(self) -> TokenLogprobs:
        return TokenLogprobs(*self[1:])


@dataclass(slots=True, kw_only=True)
class BatchOutput:
    """The sampled tokens of a batch."""

    token_ids: Int32Array
    """[num_rows]; meaningless for rows in `failed`."""
    logprobs: list[Logprobs] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    """Row to the reason for its failure, such as logits that are not finite."""
    logits: FloatArray | None = None
    """[num_rows], logits of the drawn tokens as the model gives them; NaN of rows that return none.
    None if no row returns one."""
    failed_seqs: dict[int, str] = field(default_factory=dict)
    """The same for sequences, as indices into the batch, that could not be computed at all."""
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    """One for each of the batch's prompt rows."""
    hidden: NDArray[np.uint8] | None = None
    """[T, bytes of a row], of a pipeline stage that is not the last, and has nothing else."""
    can_settle: bool = True
    """False if the batch was computed in parts: states behind its drafts can no longer be settled,
    so that none is kept."""
    pooled: dict[int, FloatArray] = field(default_factory=dict)
    """Vectors [num_outputs] of the sequences that end, by their index in the batch."""
    forward_ns: int = 0
    """Nanoseconds of the forward pass; the sum over pipeline stages."""
    sample_ns: int = 0
    stages: Stages = ()
    stages_ns: int = 0
    """Nanoseconds from the launch of the batch to the end of the last stage's forward pass."""


class Launched(Protocol):
    """A batch that a device is computing."""

    @property
    def can_feed(self) -> bool:
        """True if the next batch may refer to its samples (`Batch.fed_from`)."""
        ...

    def wait(self) -> None:
        """Blocks until the samples are there; safe from any thread."""
        ...

    def samples(self) -> BatchOutput:
        """Returns the drawn tokens; to be called on the execution thread."""
        ...
