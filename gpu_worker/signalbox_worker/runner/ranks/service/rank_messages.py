"""Commands of rank 0 to the other ranks, their reports, and hidden states.

`Command` and `Report` have them all: what is stated here travels (`rank_codec`), so that a command
or a setting needs no other place. Commands count from 1, and a report about one has its number.
A batch is sent as a `Batch` whose rows say which tokens draw, and nothing of how: rank 0 draws.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.sections.store_moves import MoveResult
from signalbox_contract.step import Step
from signalbox_contract.step_result import Stages
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.runner.loading.runner_config import RunnerConfig


class RankAddress(NamedTuple):
    """The address on which a rank listens."""

    address: str
    certified_name: str = ""
    """Name that its certificate is for; empty without certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start(RunnerConfig):
    """Command to load a shard of a model; comes once, after `Meet`; answered with `Loaded`."""

    addresses: tuple[RankAddress, ...] = ()
    """Addresses of all ranks, by rank."""

    @classmethod
    def of(cls, config: RunnerConfig) -> "Start":
        return cls(**{one.name: getattr(config, one.name) for one in fields(config)})

    @property
    def next_rank(self) -> int | None:
        """The rank that takes this one's hidden states; None on the last stage."""
        below = self.parallel.rank - self.parallel.tensor_parallel_size
        return below if below >= 0 else None


class Meet(NamedTuple):
    """Command to reach all other ranks, or to one of them to measure its links, one after another;
    the first, answered with `Met`."""

    addresses: tuple[RankAddress, ...]
    """Addresses of all ranks, by rank."""
    measuring: int | None = None
    """The rank that measures."""


class Link(NamedTuple):
    """The link to a rank."""

    rank: int
    round_trip_ns: int
    """Median of short messages and their answers."""
    bytes_per_s: int


class ProfileRun(NamedTuple):
    """Command to run the largest step; answered with `WorkerCapacity`."""


class OpenStore(NamedTuple):
    """Command to open the store of the rank, if it has one; comes once, after `ProfileRun`; not
    answered."""

    arithmetic: str
    """Digest of all ranks together, as in `WorkerCapacity`."""


class InitCacheEngine(NamedTuple):
    """Command to allocate both pools, dropping what was there; answered with `CacheReady`."""

    num_gpu_blocks: int
    num_cpu_blocks: int


class Sync(NamedTuple):
    """Command to say where the rank is, after a step that failed on rank 0; answered with `InStep`,
    once all before it is done."""


class AskMoves(NamedTuple):
    """Command to say which moves between the rank's CPU pool and its store have ended since it was
    asked last; answered with `EndedMoves`."""


class RemoveBlock(NamedTuple):
    """Command to remove a block from the rank's store, as another rank lacks it; not answered."""

    key: bytes


class OpenBlocks(NamedTuple):
    """Command to let blocks of the CPU pool be copied beside the other commands; answered with
    `BlocksOpened`."""

    number: int
    """Number of the blocks in the next commands; none is used again."""
    cpu_blocks: tuple[int, ...]


class CloseBlocks(NamedTuple):
    """Command to copy no more of what was opened: what the commands after it do to the blocks meets
    no copy; not answered."""

    number: int


class CopyBlock(NamedTuple):
    """Command to read an open block, or to write it, beside the other commands, and not counted as
    one of them; answered with `BlockCopied`."""

    number: int
    place: int
    """Place of the block among those that were opened."""
    data: bytes | None = None
    """Bytes that it is to hold; None reads it."""


class OpenAdapter(NamedTuple):
    """Command to read a shard of an adapter beside the other commands, and not counted as one of
    them; answered with `AdapterOpened`."""

    number: int
    """Number of the adapter in the next commands; none is used again."""
    name: str
    folder: str
    """The adapter's folder on the host of each rank."""


class ForgetAdapter(NamedTuple):
    """Command to free what was read of an adapter, unless it has a slot; neither counted nor
    answered."""

    number: int


class AddAdapter(NamedTuple):
    """Command to give an adapter that was read the first slot that is free: the same on all ranks.
    Not answered: a rank that fails at it ends."""

    number: int


class RemoveAdapter(NamedTuple):
    """Command to free the slot of an adapter that no later batch names. Not answered: a rank that
    fails at it ends."""

    name: str
    sha256: str
    """Hash of its content, in hexadecimal."""


Command = (
    Meet
    | Start
    | ProfileRun
    | OpenStore
    | InitCacheEngine
    | Sync
    | AskMoves
    | RemoveBlock
    | OpenBlocks
    | CloseBlocks
    | CopyBlock
    | Step
    | Batch
    | Settlement
    | OpenAdapter
    | ForgetAdapter
    | AddAdapter
    | RemoveAdapter
)
"""A `Step` is of one section alone, which every rank applies to its shard of the KV cache."""

MAY_FAIL = (Batch, ProfileRun, InitCacheEngine, Sync)
"""Commands whose failure is reported, and which rank 0 asks all ranks about. A rank that fails at
another one ends."""


class Hello(NamedTuple):
    """First report of a rank."""

    rank: int
    versions: str
    address: str
    pid: int
    told: bytes = b""
    """Settings of its own command line, as `rank_codec` writes a `Start`; read once versions are
    known to be the same; empty for a rank that rank 0 has started."""


class Met(NamedTuple):
    """The rank has tried to reach others, or measured its links."""

    faults: tuple[str, ...] = ()
    """Ranks that cannot be reached, with address and reason."""
    links: tuple[Link, ...] = ()


class Loaded(NamedTuple):
    """The rank holds its shard; all fields are the same on all ranks."""

    fingerprint: str
    numerics: str
    adapters: str
    """Names and hashes of the adapters of its start."""

    @classmethod
    def of(cls, model: ModelInfo) -> "Loaded":
        adapters = ", ".join(map(str, model.adapters))
        return cls(model.fingerprint, str(model.numerics), adapters)


class CacheReady(NamedTuple):
    """Both pools are allocated."""

    num_graphs: int
    """Graphs that the rank has recorded; ranks with and without graphs compute different logits."""


class InStep(NamedTuple):
    """Number of collectives that a rank has joined."""

    num_collectives: int


class EndedMoves(NamedTuple):
    """Moves between the rank's CPU pool and its store that have ended since the last report."""

    results: tuple[MoveResult, ...]
    is_open: bool
    """False while the rank's store finds and keeps nothing yet."""


class BlocksOpened(NamedTuple):
    """Blocks may be copied on the rank."""

    number: int


class BlockCopied(NamedTuple):
    """An open block was copied, or is open no more."""

    number: int
    place: int
    data: bytes | None
    """Bytes of a block that was read; empty of one that was written; None of one that is closed."""


class AdapterOpened(NamedTuple):
    """An adapter was read, or could not be."""

    number: int
    sha256: str
    """Hash of its content: the same on all ranks, or none of them gives it a slot."""
    error: str
    """Reason why it could not be; empty if it was."""


class Failure(NamedTuple):
    """A command that failed."""

    message: str
    out_of_memory: bool

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        message = str(error).partition("\n")[0] or type(error).__name__
        return cls(message, isinstance(error, MemoryError))


class LogLine(NamedTuple):
    """A line of a rank's log."""

    level: int
    logger: str
    message: str


Report = (
    Hello
    | Met
    | Loaded
    | CacheReady
    | WorkerCapacity
    | InStep
    | EndedMoves
    | BlocksOpened
    | BlockCopied
    | AdapterOpened
    | Failure
    | LogLine
)


class PassedStates(NamedTuple):
    """The result of a stage for one command."""

    command: int
    values: NDArray[np.uint8]
    """[T, bytes of a row], which may be written to."""
    stages: Stages = ()
    """Times of the stages so far."""


class FailedStates(NamedTuple):
    """Passed on in place of hidden states if a stage could not compute them."""

    command: int
    failure: Failure
