"""Commands of rank 0 to the other ranks, and their reports; see rank.proto.

A batch is sent as a `Batch` whose rows say which tokens draw, and nothing of how: rank 0 draws.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np

from contract.model import WorkerCapacity
from contract.step import Step
from gpu_worker.batch.arrays import Int64Array
from gpu_worker.batch.batch import Batch
from gpu_worker.batch.sampling_rows import NO_LOGPROBS, PromptRows, SampleRows
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ParallelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Command to load a model."""

    model: ModelConfig
    cache: CacheConfig
    parallel: ParallelConfig
    device: DeviceConfig


class Ask(Enum):
    """Commands without arguments."""

    PROFILE = "profile"
    SYNC = "sync"


class InitCacheEngine(NamedTuple):
    """Sizes of both pools."""

    num_gpu_blocks: int
    num_cpu_blocks: int


Command = Start | Ask | InitCacheEngine | Step | Batch
"""A `Step` is of sections alone, which every rank applies to its share of the KV cache."""


class Done(Enum):
    """Reports without content."""

    JOINING = "joining"
    LOADED = "loaded"


class CacheReady(NamedTuple):
    """Both pools are allocated."""

    num_graphs: int
    """Graphs that the rank has recorded; ranks with and without graphs compute different logits."""


class InStep(NamedTuple):
    """Number of collectives that a rank has joined."""

    num_collectives: int


class Failure(NamedTuple):
    """A command that failed."""

    message: str
    out_of_memory: bool


class LogLine(NamedTuple):
    """A line of a rank's log."""

    level: int
    logger: str
    message: str


Report = Done | CacheReady | WorkerCapacity | InStep | Failure | LogLine


def rows_of(tokens: Int64Array) -> SampleRows:
    """Rows that ask for the logits of these tokens, and of which nothing else is known."""
    num_rows = len(tokens)
    nothing = np.zeros(num_rows, dtype=np.int64)
    unused = np.zeros(num_rows, dtype=np.float32)
    return SampleRows(
        seq_ids=nothing,
        token_index=tokens,
        branch=nothing,
        position=nothing,
        temperature=unused,
        top_p=unused,
        top_k=nothing,
        min_p=unused,
        typical_p=unused,
        seed=np.zeros(num_rows, dtype=np.uint64),
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
    )


def prompt_rows_of(tokens: Int64Array) -> PromptRows | None:
    """Likewise for tokens whose log probabilities are reported; None if there are none."""
    if not len(tokens):
        return None
    nothing = np.zeros(0, dtype=np.int64)
    return PromptRows(
        seq_index=nothing,
        first_position=nothing,
        lengths=nothing,
        token_index=tokens,
        targets=np.zeros(len(tokens), dtype=np.int32),
        num_logprobs=np.zeros(len(tokens), dtype=np.int64),
    )
