"""Runs one model on a CPU through a native program.

The twin of `ModelRunner`, which runs models through PyTorch.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.startup import ReportProgress, StartupPhase, StartupProgress
from signalbox_contract.step import Step
from signalbox_kernels.group import CalledOff, Group
from signalbox_kernels.program import Program
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.stage_layers import StageLayers
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.device.inspection import BackendInUse, MemoryReport, ProfileOptions
from signalbox_worker.kv_cache.capacity import RankShare, measure_capacity
from signalbox_worker.kv_cache.measured_device import HostDevice
from signalbox_worker.kv_store.pool_transfers import PoolTransfers
from signalbox_worker.kv_store.store_threads import no_store
from signalbox_worker.loading.block_content import BlockContent, describe
from signalbox_worker.loading.model_source import naming
from signalbox_worker.loading.opened_model import OpenedModel
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.native.block_pools import BlockPools
from signalbox_worker.native.executor import NativeExecutor
from signalbox_worker.native.native_encoder import load_encoder_natively
from signalbox_worker.native.native_model import NativeModel, load_natively
from signalbox_worker.native.pooling_executor import NativePoolingExecutor
from signalbox_worker.native.recording import NativeRecording
from signalbox_worker.parallel_config import ParallelConfig
from signalbox_worker.runner.local_runner import LocalRunner

_STEP_DIVISOR = 8
"""Part of the largest step that a start runs; its attention is by blocks, so that all buffers grow
with tokens and rows."""


class NativeRunner(LocalRunner):
    """A loaded model with its pools of KV blocks. Call from one thread."""

    def __init__(
        self,
        opened: OpenedModel,
        model_config: ModelConfig,
        cache_config: CacheConfig,
        device_config: DeviceConfig,
        *,
        parallel_config: ParallelConfig,
        layers: StageLayers,
        group: Group | None,
        progress: ReportProgress,
    ) -> None:
        """Loads a model of which `why_not_natively` is None, or a rank's share of it.

        Args:
            layers: those of the rank's stage.
            group: tensor-parallel ranks of the stage; None if there is one.
        """
        self._progress = progress
        self._opened, self._cache_config = opened, cache_config
        self._model_config = model_config
        self._name = model_config.model
        configs = (model_config, cache_config, device_config)
        if isinstance(opened.config, EncoderConfig):
            loaded = load_encoder_natively(opened, *configs, progress=progress)
        else:
            loaded = load_natively(
                opened,
                *configs,
                parallel=parallel_config,
                layers=layers,
                group=group,
                progress=progress,
            )
        self._parallel = parallel_config
        self.layers = layers
        self._info, self._program, self._adapters = loaded.info, loaded.program, loaded.adapters
        self._group = group
        self._executor = self._make_executor(loaded, draws=parallel_config.tensor_rank == 0)
        self._device = HostDevice()
        self._cache: BlockPools | None = None
        self.transfers = PoolTransfers(no_store())

    def _make_executor(self, loaded: NativeModel, *, draws: bool) -> NativeExecutor:
        program, sampler, pooling = loaded.program, loaded.sampler, loaded.pooling
        if pooling is None:
            return NativeExecutor(program, sampler, self.layers, draws=draws)
        return NativePoolingExecutor(program, sampler, self.layers, pooling=pooling)

    @property
    def model(self) -> ModelInfo:
        return self._info

    @property
    def backends(self) -> tuple[BackendInUse, ...]:
        return (BackendInUse("attention", "native"), BackendInUse("sampling", "native"))

    @property
    def num_graphs(self) -> int:
        """Always 0: a program is called as a whole."""
        return 0

    @property
    def num_collectives(self) -> int:
        return 0 if self._group is None else self._group.num_joined

    @property
    def collective_ns(self) -> int:
        """Nanoseconds that this rank has waited for the others of its stage."""
        return 0 if self._group is None else self._group.waited_ns

    def abort_collectives(self) -> None:
        if self._group is not None:
            self._group.call_off()

    @property
    def program(self) -> Program:
        """The program that computes the steps."""
        return self._program

    def tokenizer_files(self) -> dict[str, bytes]:
        with naming(self._name):
            return self._opened.tokenizer_files()

    @property
    def adapter_slots(self) -> Mapping[str, int]:
        return self._adapters.slots.of

    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        return self._adapters.open(name, folder)

    def add_adapter(self, opened: OpenedAdapter) -> None:
        self._adapters.add(opened)
        self._info = replace(self._info, adapters=self._adapters.slots.loaded)

    def remove_adapter(self, adapter: Adapter) -> None:
        self._adapters.remove(adapter)
        self._info = replace(self._info, adapters=self._adapters.slots.loaded)

    def profile(self) -> WorkerCapacity:
        self._progress(StartupProgress(StartupPhase.PROFILE))
        shape = self._program.shape
        capacity = measure_capacity(
            cache_config=self._cache_config,
            block_size=shape.block_size,
            max_model_len=self._info.max_model_len,
            block_bytes=shape.block_bytes,
            device=self._device,
            execute=self._execute_without_cache,
            share=RankShare.of(self._parallel, self.layers),
            adapters_bytes=self._adapters.memory.left,
            step_divisor=_STEP_DIVISOR,
            store=self.transfers.store_capacity,
        )
        return replace(capacity, block_format=self.block_content().format_of(capacity))

    def block_content(self) -> BlockContent:
        shape = self._program.shape
        return describe(
            self._model_config,
            self._info,
            self._opened.files,
            config=self._opened.config,
            block_size=shape.block_size,
            block_bytes=shape.block_bytes,
            backends=(self.backends, self._program.weights),
            parallel=self._parallel,
            layers=self.layers,
        )

    def _execute_without_cache(self, batch: Batch) -> None:
        """Runs a batch whose blocks are all block 0 of a pool of one."""
        self.init_cache_engine(num_gpu_blocks=1, num_cpu_blocks=0)
        self.execute(batch)
        self._drop_cache()

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._drop_cache()  # the old pools go before the new ones come
        try:
            self._cache = BlockPools(
                num_gpu_blocks=num_gpu_blocks,
                num_cpu_blocks=num_cpu_blocks,
                block_bytes=self._program.shape.block_bytes,
            )
        except MemoryError as error:
            raise MemoryError(
                f"no memory for {num_gpu_blocks} GPU and {num_cpu_blocks} CPU blocks; lower "
                f"kv_cache_memory or swap_space ({error})"
            ) from None
        self._program.bind(self._cache.gpu_pool)
        self.transfers.bind(self._cache)

    def _drop_cache(self) -> None:
        self.transfers.unbind()
        if self._cache is not None:
            self._cache = None
            # The program holds the pool, which would stay in memory.
            self._program.bind(np.zeros((1, self._program.shape.block_bytes), dtype=np.uint8))

    @property
    def cache(self) -> BlockPools:
        if self._cache is None:
            raise RuntimeError("init_cache_engine comes first")
        return self._cache

    def apply(self, sections: Step) -> int:
        return self.cache.apply(sections)

    def execute(self, batch: Batch) -> BatchOutput:
        """Raises MemoryError where a smaller batch may do, DeviceLost if another rank is lost."""
        if self._cache is None:
            raise RuntimeError("init_cache_engine comes first")
        if not len(batch.token_ids):
            return BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        try:
            return self._executor.execute(batch)
        except CalledOff as error:
            raise DeviceLost(str(error)) from None

    def close(self, failure: str | None = None) -> None:
        self.transfers.close()

    def memory(self) -> MemoryReport:
        pools = self._cache
        return MemoryReport(
            weights=self._program.weights_bytes,
            kv=pools.gpu_pool.nbytes if pools else 0,
            swap=pools.cpu_pool.nbytes if pools else 0,
            adapters=self._adapters.memory.reserved,
            **self._device.use()._asdict(),
        )

    def begin_recording(self, options: ProfileOptions) -> NativeRecording:
        return NativeRecording(options, self._program)
