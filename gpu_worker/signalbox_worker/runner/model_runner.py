"""Runs one model on one device through PyTorch.

Loads it, measures what fits, owns its caches, computes batches.

A `TorchExecutor` or `AsyncExecutor` computes each batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.startup import (
    ReportProgress,
    StartupPhase,
    StartupProgress,
    ignore_progress,
)
from signalbox_contract.step import Step
from signalbox_kernels import triton
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.stage_layers import StageLayers
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.device_choice import recorder_for
from signalbox_worker.device.graphs import GraphRecorder
from signalbox_worker.device.inspection import BackendInUse, MemoryReport, ProfileOptions
from signalbox_worker.device.keys import Keys
from signalbox_worker.device.memory import is_out_of_memory
from signalbox_worker.device.torch_profiler import TorchRecording
from signalbox_worker.executors.async_executor import AsyncExecutor, LaunchedStep
from signalbox_worker.executors.stage_executor import StageExecutor
from signalbox_worker.executors.step_graphs import StepGraphs
from signalbox_worker.kv_cache.block_dependencies import blocks_of
from signalbox_worker.kv_cache.cache_engine import CacheEngine
from signalbox_worker.kv_cache.capacity import RankShare, measure_capacity
from signalbox_worker.kv_cache.cuda_device import measured
from signalbox_worker.kv_store.pool_transfers import PoolTransfers
from signalbox_worker.kv_store.store_threads import no_store
from signalbox_worker.loading.block_content import BlockContent, describe
from signalbox_worker.loading.loaded_model import load_model
from signalbox_worker.loading.model_source import naming
from signalbox_worker.loading.opened_model import OpenedModel
from signalbox_worker.parallel_config import ParallelConfig
from signalbox_worker.runner.executor_factory import make_executor
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.warm_up import warm_up_batches


class ModelRunner(LocalRunner):
    """A loaded model with its caches. Call from one thread."""

    def __init__(
        self,
        model_config: ModelConfig,
        cache_config: CacheConfig,
        *,
        parallel_config: ParallelConfig | None = None,
        device_config: DeviceConfig | None = None,
        recorder: GraphRecorder | None = None,
        keys: Keys | None = None,
        layers: StageLayers | None = None,
        progress: ReportProgress = ignore_progress,
        opened: OpenedModel | None = None,
        why_not_natively: str = "PyTorch is asked for",
    ) -> None:
        """Loads the model.

        Args:
            keys: where tensor-parallel ranks meet.
            layers: those of this rank's pipeline stage; None has all.
            recorder: records steps as graphs; by default that of the device.
            opened: the model, if it is opened already.
            why_not_natively: what keeps the model from running natively, for messages.
        """
        self._progress = progress
        device_config = device_config or DeviceConfig()
        self._model_config = model_config
        self._model = model_config.model
        with naming(self._model):
            self._loaded = load_model(
                model_config,
                cache_config,
                parallel_config or ParallelConfig(),
                device_config,
                keys=keys,
                layers=layers,
                progress=progress,
                opened=opened,
                why_not_natively=why_not_natively,
            )
        self._model_info = self._loaded.info
        self._cache_config = cache_config
        self._parallel = parallel_config or ParallelConfig()
        if device_config.enforce_eager:
            recorder = None
        elif recorder is None:
            recorder = recorder_for(self._loaded.device)
        self._executor = make_executor(
            self._loaded,
            cache_config,
            recorder,
            max_graph_tokens=device_config.max_cudagraph_capture_size,
        )
        self.layers = self._loaded.stage
        self._cache: CacheEngine | None = None
        self.transfers = PoolTransfers(no_store())
        self._is_warm = False

    @property
    def model(self) -> ModelInfo:
        return self._model_info

    @property
    def backends(self) -> tuple[BackendInUse, ...]:
        return self._loaded.backends

    @property
    def num_graphs(self) -> int:
        """Sizes of steps that are recorded."""
        return len(self._graphs) if self._graphs is not None else 0

    @property
    def num_collectives(self) -> int:
        """Collectives that this rank has joined."""
        collectives = self._loaded.group.collectives
        return collectives.num_joined if collectives is not None else 0

    @property
    def collective_ns(self) -> int:
        """Nanoseconds that this rank has spent in collectives of CPUs."""
        collectives = self._loaded.group.collectives
        return collectives.spent_ns if collectives is not None else 0

    def abort_collectives(self) -> None:
        """Ends the execution thread's wait for ranks that are lost; safe from any thread."""
        collectives = self._loaded.group.collectives
        if collectives is not None:
            collectives.abort()

    def tokenizer_files(self) -> dict[str, bytes]:
        with naming(self._model):
            return self._loaded.opened.tokenizer_files()

    @property
    def adapter_slots(self) -> Mapping[str, int]:
        return self._loaded.adapters.slots.of

    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        return self._loaded.adapters.open(name, folder)

    def add_adapter(self, opened: OpenedAdapter) -> None:
        self._loaded.adapters.add(opened)
        self._model_info = replace(self._model_info, adapters=self._loaded.adapters.slots.loaded)

    def remove_adapter(self, adapter: Adapter) -> None:
        self._loaded.adapters.remove(adapter)
        self._model_info = replace(self._model_info, adapters=self._loaded.adapters.slots.loaded)

    def profile(self) -> WorkerCapacity:
        self._progress(StartupProgress(StartupPhase.PROFILE))
        pooling = self.model.pooling
        capacity = measure_capacity(
            cache_config=self._cache_config,
            block_size=self._loaded.block_size,
            max_model_len=self.model.max_model_len,
            block_bytes=self._executor.block_bytes,
            device=measured(self._loaded.device),
            execute=self._execute_without_cache,
            share=RankShare.of(self._parallel, self._loaded.stage),
            others_bytes=self._loaded.others_bytes,
            graphs_bytes=self._measure_graphs(),
            adapters_bytes=self._loaded.adapters.memory.left,
            computes_whole=pooling is not None and pooling.is_bidirectional,
            store=self.transfers.store_capacity,
        )
        return replace(capacity, block_format=self.block_content().format_of(capacity))

    def block_content(self) -> BlockContent:
        opened = self._loaded.opened
        return describe(
            self._model_config,
            self._model_info,
            opened.files,
            config=opened.config,
            block_size=self._loaded.block_size,
            block_bytes=self._executor.block_bytes,
            backends=self.backends,
            parallel=self._parallel,
            layers=self._loaded.stage,
        )

    def _execute_without_cache(self, batch: Batch) -> None:
        """Runs a batch whose blocks are all block 0 of a pool of one."""
        self._make_cache(num_gpu_blocks=1, num_cpu_blocks=0)
        self._execute_alone(batch)
        self._drop_cache()

    def _execute_alone(self, batch: Batch) -> None:
        """Runs a batch without the other stages, if there are any."""
        if isinstance(self._executor, StageExecutor):
            self._executor.make_up_hidden(batch)
        self.execute(batch)

    def _measure_graphs(self) -> int:
        """Returns the bytes that graphs will take beside all else."""
        if self._graphs is None:
            return 0
        self._make_cache(num_gpu_blocks=1, num_cpu_blocks=0)
        try:
            with torch.inference_mode():
                return self._graphs.measure()
        finally:
            self._drop_cache()

    @property
    def _graphs(self) -> StepGraphs | None:
        return self._executor.graphs if isinstance(self._executor, AsyncExecutor) else None

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._make_cache(num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)
        if self._graphs is not None:
            with torch.inference_mode():
                self._graphs.capture()
        if self._loaded.device.type == "cuda" and not self._is_warm:
            self.warm_up()

    def warm_up(self) -> None:
        """Compiles every kernel that a step may use; one that comes later is logged."""
        for batch in warm_up_batches(
            num_tokens=self._cache_config.num_batched_tokens(self._loaded.device.type),
            block_size=self._loaded.block_size,
            max_model_len=self.model.max_model_len,
            vocab_size=self.model.vocab_size,
        ):
            self._execute_alone(batch)
        self._is_warm = True
        if triton.is_installed():
            from signalbox_kernels.triton import compilations

            compilations.report_from_now_on()

    def _make_cache(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._drop_cache()  # the old pools go before the new ones come
        try:
            self._cache = CacheEngine(
                num_gpu_blocks=num_gpu_blocks,
                num_cpu_blocks=num_cpu_blocks,
                block_bytes=self._executor.block_bytes,
                device=self._loaded.device,
            )
        except (torch.OutOfMemoryError, MemoryError) as error:
            reason = str(error).partition("\n")[0]
            raise MemoryError(
                f"no memory for {num_gpu_blocks} GPU and {num_cpu_blocks} CPU blocks; lower "
                f"gpu_memory_utilization, kv_cache_memory or swap_space ({reason})"
            ) from None
        self._executor.bind(self._cache.gpu_pool)
        self.transfers.bind(self._cache)

    def _drop_cache(self) -> None:
        self.transfers.unbind()
        if self._cache is not None:
            self._cache.close()
            self._cache = None
            # Executors hold views of the pool, which would keep it in memory.
            nothing = torch.zeros(1, self._executor.block_bytes, dtype=torch.uint8)
            self._executor.bind(nothing.to(self._loaded.device))

    @property
    def cache(self) -> CacheEngine:
        if self._cache is None:
            raise RuntimeError("init_cache_engine comes first")
        return self._cache

    def apply(self, sections: Step) -> int:
        return self.cache.apply(sections)

    def close(self, failure: str | None = None) -> None:
        self.transfers.close()

    def memory(self) -> MemoryReport:
        pools = self._cache
        return MemoryReport(
            weights=self._loaded.weights_bytes,
            kv=pools.gpu_pool.nbytes if pools else 0,
            swap=pools.cpu_pool.nbytes if pools else 0,
            adapters=self._loaded.adapters.memory.reserved,
            **measured(self._loaded.device).use()._asdict(),
        )

    def begin_recording(self, options: ProfileOptions) -> TorchRecording:
        return TorchRecording(options, self._loaded.device)

    @property
    def launches(self) -> bool:
        return isinstance(self._executor, AsyncExecutor)

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedStep:
        assert isinstance(self._executor, AsyncExecutor), "asked of a runner that launches"
        use = partial(blocks_of, batch, block_size=self._loaded.block_size)
        with self.cache.computing(use):
            return self._executor.launch(batch)

    def execute(self, batch: Batch) -> BatchOutput:
        """Raises MemoryError where a smaller batch may do."""
        try:
            return self._execute(batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from None

    @torch.inference_mode()
    def _execute(self, batch: Batch) -> BatchOutput:
        if not len(batch.token_ids):
            return BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        use = partial(blocks_of, batch, block_size=self._loaded.block_size)
        with self.cache.computing(use):
            return self._executor.execute(batch)
