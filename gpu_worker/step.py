"""What the worker's core is told and what it answers: one step, its batch, its samples.

The dataclasses here are the contract inside the worker: `codec.py` makes a `Step` of the wire's
message, `SequenceTable` makes a `Batch` of the step, a `Runner` makes `Samples` of the batch.
Arrays are NumPy; a runner moves them to its device.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpu_worker.sampling.sample_rows import PromptRows, SampleRows
from rpc.sampling_params import SamplingParams

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]


def _no_ids() -> Int64Array:
    return np.empty(0, dtype=np.int64)


class BlockMapping(NamedTuple):
    """Copy block src[i] to block dst[i]; both [num_copies] int32."""

    src: Int32Array
    dst: Int32Array


NO_COPIES = BlockMapping(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


@dataclass(slots=True, kw_only=True)
class NewSequence:
    """A sequence that is new to the worker, or resumes after swap or recompute."""

    seq_id: int
    branch: int
    token_ids: list[int]
    num_prompt_tokens: int
    num_computed_tokens: int
    num_new_tokens: int
    block_table: list[int]
    num_samples: int
    params: SamplingParams


class BlockTablePatch(NamedTuple):
    """Write `blocks` at `first_index` of a sequence's block table."""

    seq_id: int
    first_index: int
    blocks: list[int]


class Fork(NamedTuple):
    """`child` continues the computed tokens of `parent` with `token_id`."""

    parent: int
    child: int
    branch: int
    token_id: int


@dataclass(slots=True, kw_only=True)
class Step:
    """One ExecuteModelRequest, decoded."""

    epoch: int
    step_id: int
    finished: Int64Array = field(default_factory=_no_ids)
    forks: list[Fork] = field(default_factory=list)
    new: list[NewSequence] = field(default_factory=list)
    running_seq_ids: Int64Array = field(default_factory=_no_ids)
    running_num_new_tokens: Int32Array = field(default_factory=lambda: np.empty(0, dtype=np.int32))
    patches: list[BlockTablePatch] = field(default_factory=list)
    swap_out: BlockMapping = NO_COPIES
    swap_in: BlockMapping = NO_COPIES
    copy: BlockMapping = NO_COPIES
    traceparent: str = ""
    tracestate: str = ""


@dataclass(slots=True, kw_only=True)
class Batch:
    """The forward pass of one step over B sequences and T tokens, packed without padding."""

    token_ids: Int64Array
    """[T]."""
    positions: Int64Array
    """[T], index of each token in its sequence."""
    slot_mapping: Int64Array
    """[T], block * block_size + offset: where each token's K and V go."""
    query_start: Int64Array
    """[B + 1]: sequence i computes tokens query_start[i]:query_start[i + 1]."""
    context_lens: Int64Array
    """[B], tokens of each sequence whose K and V exist after this step."""
    block_tables: Int32Array
    """[B, max_blocks], padded with 0 past each sequence's blocks."""
    rows: SampleRows
    prompt_rows: PromptRows | None = None
    """None if nobody asked for log probabilities of what is computed."""
    fed_from: Int64Array | None = None
    """[T], the draw of the batch before that is the token, or -1 where token_ids knows it."""


class Logprobs(NamedTuple):
    """Log probabilities of one row, of the model's own logits."""

    row: int
    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(slots=True, kw_only=True)
class Samples:
    """What a runner drew."""

    token_ids: Int32Array
    """[num_rows]; meaningless for rows in `failed`."""
    logprobs: list[Logprobs] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    """Row to the reason for its failure, such as logits that are not finite."""
    failed_seqs: dict[int, str] = field(default_factory=dict)
    """The same for sequences, as indices into the batch, that could not be computed at all."""
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    """One for each of the batch's prompt rows."""
    forward_ns: int = 0
    sample_ns: int = 0


class PromptLogprobs(NamedTuple):
    """Log probabilities of a run of one sequence's prompt; `row` counts in the run."""

    seq_id: int
    first_position: int
    logprobs: list[Logprobs]


NONE_LEFT = "every token is suppressed"
"""By what the request asks for."""


class SequenceFailure(NamedTuple):
    """One sequence's error; the rest of the step is unharmed."""

    seq_id: int
    message: str

    @property
    def is_refusal(self) -> bool:
        """Whether the request is the cause, and not the computation."""
        return self.message == NONE_LEFT


@dataclass(slots=True, kw_only=True)
class StepResult:
    """One ExecuteModelResponse before encoding."""

    epoch: int
    step_id: int
    seq_ids: Int64Array
    token_ids: Int32Array
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failures: list[SequenceFailure] = field(default_factory=list)
    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    max_num_batched_tokens: int | None = None
    """Of the steps to come, where memory suffices for less than was announced."""
