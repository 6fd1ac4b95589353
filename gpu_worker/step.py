"""What the worker's core is told and what it answers: one step, its batch, its samples.

The dataclasses here are the contract inside the worker: `codec.py` makes a `Step` of the wire's
message, `SequenceTable` makes a `Batch` of the step, a `Runner` makes `Samples` of the batch.
Arrays are NumPy; a runner moves them to its device.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a worker serves; see worker.proto."""

    name: str
    architecture: str
    dtype: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheCapacity:
    """How much a worker can hold, found by profiling; see worker.proto."""

    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    block_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    copy_bytes_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    activations_bytes: int = 0
    """What the largest step took beside weights and KV."""
    tensor_parallel_size: int = 1
    """Ranks, each with these blocks of `block_bytes`."""


class Runner(Protocol):
    """Computes batches on one device and owns the KV cache there.

    All calls after construction come from the worker's one execution thread.
    """

    @property
    def model(self) -> ModelInfo: ...

    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns "tokenizer.json" (tokenizers format) and "tokenizer_config.json"."""
        ...

    def profile(self) -> CacheCapacity:
        """Measures what fits beside weights and activations. Raises MemoryError if nothing does."""
        ...

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        """Allocates both pools, dropping what was there."""
        ...

    def swap_out(self, mapping: BlockMapping) -> None:
        """Copies blocks from the GPU pool to the CPU pool."""
        ...

    def swap_in(self, mapping: BlockMapping) -> None:
        """Copies blocks from the CPU pool to the GPU pool."""
        ...

    def copy(self, mapping: BlockMapping) -> None:
        """Copies blocks within the GPU pool."""
        ...

    def execute(self, batch: Batch) -> Samples:
        """Writes the batch's K and V, attends over the block tables, draws the rows."""
        ...


@runtime_checkable
class Overlapping(Protocol):
    """A runner whose swaps may go on after the calls that begin them."""

    def take_copy_ns(self) -> int:
        """Returns what the swaps since the last call take beside the time of their calls."""
        ...


class Launched(Protocol):
    """A batch that a device is computing."""

    @property
    def can_feed(self) -> bool:
        """Whether the next batch may name its draws (`Batch.fed_from`)."""
        ...

    def wait(self) -> None:
        """Blocks until the samples can be had; safe from any thread."""
        ...

    def samples(self) -> Samples:
        """Returns what was drawn; on the execution thread."""
        ...


@runtime_checkable
class Launching(Protocol):
    """A runner that may begin a batch before the one before it has ended."""

    @property
    def launches(self) -> bool:
        """Whether this one does; others are only asked to `execute`."""
        ...

    def launch(self, batch: Batch) -> Launched:
        """Does what `execute` does, without waiting; raises what can be said at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Where a worker's memory goes, in bytes; see worker.proto."""

    weights: int
    kv: int
    swap: int
    used: int
    unused: int
    total: int


class ProfileOptions(NamedTuple):
    """What is recorded of the steps to come."""

    duration_s: float
    record_shapes: bool = False
    with_stack: bool = False


class Recording(Protocol):
    """A profile that is being taken."""

    @property
    def kernel_ns(self) -> Mapping[str, int]:
        """After `end`: time of all threads by kind of kernel, if nothing else says that."""
        ...

    def end(self) -> None:
        """Stops recording; on the execution thread, as it began."""
        ...

    def chrome_trace(self) -> bytes:
        """Returns what was recorded, gzipped; on any thread."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A runner that can prepare for steps to come while none is there."""

    def settle(self) -> bool:
        """Does so for some milliseconds; returns whether there is more to do."""
        ...


@runtime_checkable
class Inspectable(Protocol):
    """A runner that says where time and memory go; a simulated one has neither."""

    def memory(self) -> MemoryReport:
        """Safe from any thread."""
        ...

    def begin_recording(self, options: ProfileOptions) -> Recording: ...


@runtime_checkable
class Closeable(Protocol):
    """A runner with more to end than its memory, such as processes."""

    def close(self) -> None:
        """After the last call; safe from any thread."""
        ...


def close(runner: Runner) -> None:
    """Ends what a runner has started."""
    if isinstance(runner, Closeable):
        runner.close()
