"""The model of a runner beside what computes it: its files, and what fits here."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from signalbox_contract.model import ModelInfo, StoreCapacity, WorkerCapacity
from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_worker.batch.batch import Batch
from signalbox_worker.kv.cache.capacity import RankShare, measure_capacity
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.loading.block_content import BlockContent, describe
from signalbox_worker.runner.loading.model_source import naming
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig

T = TypeVar("T")


class WithOneBlock(Protocol):
    """Calls a function while the executor computes in a pool of one block; returns its result."""

    def __call__(self, work: Callable[[], T]) -> T: ...


class RunnerModel(ABC):
    """Description of the model of a `LocalRunner`."""

    model: ModelInfo
    """Model as it is at the start, without adapters of run time."""

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
    ) -> None:
        self.model = executor.model
        self._executor, self._opened = executor, opened
        self._config, self._progress = config, progress

    def tokenizer_files(self) -> dict[str, bytes]:
        with naming(self._config.model.model):
            return self._opened.tokenizer_files()

    def measure(self, with_one_block: WithOneBlock, store: StoreCapacity | None) -> WorkerCapacity:
        self._progress(StartupProgress(StartupPhase.PROFILE))
        executor = self._executor

        def execute(batch: Batch) -> None:
            with_one_block(lambda: executor.execute_alone(batch))

        graphs_bytes = with_one_block(executor.measure_graphs)
        capacity = measure_capacity(
            self._config.cache,
            replace(executor.footprint, graphs_bytes=graphs_bytes),
            executor.device,
            execute,
            share=RankShare.of(self._config.parallel, executor.layers),
            store=store,
        )
        return replace(capacity, block_format=self.block_content().format_of(capacity))

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
