"""The model of a runner beside what computes it: its files, and what fits here."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from signalbox_contract.model import ModelInfo, StoreCapacity, WorkerCapacity
from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.cache.capacity import RankShare, measure_capacity
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.loading.block_content import BlockContent, describe
from signalbox_worker.runner.loading.model_source import naming
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")


def most_drafts(config: SpeculationConfig, executor: Executor, parallel: ParallelConfig) -> int:
    """Returns the most drafts of a sequence in a step; if any are asked for, says how many, or why
    none."""
    if not config.num_tokens or (config.is_default and not executor.is_batch_invariant):
        return 0
    why_not = why_no_drafts(executor, parallel)
    if parallel.rank == 0 and why_not is None:
        logger.info("a sequence computes at most %d drafts in a step", config.num_tokens)
    elif parallel.rank == 0 and not config.is_default:
        logger.info("no drafts are computed: %s", why_not)
    return 0 if why_not else config.num_tokens


def why_no_drafts(executor: Executor, parallel: ParallelConfig) -> str | None:
    """Says why a worker computes no drafts; None if it can."""
    if executor.model.pooling is not None:
        return "the model pools"
    if parallel.pipeline_parallel_size > 1:
        return "stages begin a step before the tokens of the one before it are known"
    if executor.device.type == "cuda":
        return "a CUDA device begins a step before the tokens of the one before it are known"
    return None


class WithOneBlock(Protocol):
    """Calls a function while the executor computes in a pool of one block; returns its result."""

    def __call__(self, work: Callable[[], T]) -> T: ...


class RunnerModel(ABC):
    """Description of the model of a `LocalRunner`."""

    model: ModelInfo
    """Model as it is at the start, without adapters of run time."""
    speculation: SpeculationConfig
    """Drafts that the settings ask for."""

    @abstractmethod
    def tokenizer_files(self) -> dict[str, bytes]:
        """Returns "tokenizer.json" (tokenizers format) and "tokenizer_config.json"."""

    @abstractmethod
    def measure(self, with_one_block: WithOneBlock, store: StoreCapacity | None) -> WorkerCapacity:
        """Measures what fits beside weights and activations. Raises MemoryError if nothing does.

        Args:
            store: that of the runner, whose blocks pass through swap space.
        """


class CheckpointModel(RunnerModel):
    """A model of files, or a rank's shard of it."""

    def __init__(
        self,
        executor: Executor,
        opened: OpenedModel,
        config: RunnerConfig,
        progress: ReportProgress,
        *,
        draft_model_bytes: int = 0,
    ) -> None:
        """Args: draft_model_bytes: reserved for KV and steps of a draft model."""
        self.model = executor.model
        self._executor, self._opened = executor, opened
        self._config, self._progress = config, progress
        self.speculation = config.speculation
        self._draft_model_bytes = draft_model_bytes

    def tokenizer_files(self) -> dict[str, bytes]:
        with naming(self._config.model.model):
            return self._opened.tokenizer_files()

    def measure(self, with_one_block: WithOneBlock, store: StoreCapacity | None) -> WorkerCapacity:
        self._progress(StartupProgress(StartupPhase.PROFILE))
        executor, config = self._executor, self._config

        def execute(batch: Batch) -> None:
            with_one_block(lambda: executor.execute_alone(batch))

        max_draft_tokens = most_drafts(self.speculation, executor, config.parallel)
        footprint = replace(
            executor.footprint,
            graphs_bytes=with_one_block(executor.measure_graphs),
            drafts_bytes=self._draft_model_bytes + self._recent_bytes(max_draft_tokens),
            max_draft_tokens=max_draft_tokens,
        )
        capacity = measure_capacity(
            config.cache,
            footprint,
            executor.device,
            execute,
            share=RankShare.of(config.parallel, executor.layers),
            store=store,
        )
        return replace(
            capacity,
            block_format=self.block_content().format_of(capacity),
            arithmetic=executor.arithmetic(max_num_tokens=capacity.max_num_batched_tokens),
        )

    def _recent_bytes(self, max_draft_tokens: int) -> int:
        """Returns the memory of recent outputs, which rank 0 keeps."""
        is_kept = max_draft_tokens and self._config.parallel.rank == 0
        return self.speculation.recent_bytes if is_kept else 0

    def block_content(self) -> BlockContent:
        """Returns what KV blocks depend on beside their tokens."""
        executor = self._executor
        return describe(
            self._config,
            self.model,
            self._opened.files,
            described=self._opened.config,
            footprint=executor.footprint,
            form=executor.form,
            layers=executor.layers,
        )
