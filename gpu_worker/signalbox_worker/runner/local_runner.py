"""The runner of one process: owns the pools of KV blocks, the transfers and the adapters."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from signalbox_contract.model import Adapter, ModelInfo, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_worker.batch.adapter_slots import OpenedAdapter
from signalbox_worker.batch.batch import Batch, BatchOutput, Launched
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.device.inspection import (
    BackendInUse,
    MemoryReport,
    ProfileOptions,
    Recording,
)
from signalbox_worker.drafts.chain import make_proposer
from signalbox_worker.drafts.proposer import Proposer
from signalbox_worker.kv.cache.pools import NO_POOLS, Pools
from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.runner.draft_model.draft_model import DraftModel
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.runner_model import RunnerModel

T = TypeVar("T")


class LocalRunner(Runner):
    """A loaded model with its pools, or a rank's shard. Call from one thread."""

    transfers: PoolTransfers

    def __init__(
        self,
        executor: Executor,
        served: RunnerModel,
        transfers: PoolTransfers,
        draft_model: DraftModel | None = None,
    ) -> None:
        self.executor, self.transfers = executor, transfers
        self.pools: Pools = NO_POOLS
        self._served = served
        self._model = served.model
        self._adapters = executor.adapters
        self._draft_model = draft_model

    @property
    def model(self) -> ModelInfo:
        return self._model

    @property
    def backends(self) -> tuple[BackendInUse, ...]:
        return self.executor.backends

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._served.tokenizer_files()

    def profile(self) -> WorkerCapacity:
        capacity = self.measure()
        self.open_store(capacity.arithmetic)
        return capacity

    def measure(self) -> WorkerCapacity:
        """Measures what fits on this rank."""
        if self._served.speculation.method:
            self.make_proposer()  # the start fails if a package's cannot be used, not a lease
        return self._served.measure(self._with_one_block, self.transfers.store_capacity)

    def open_store(self, arithmetic: str) -> None:
        """Opens the store, if there is one, for blocks of the arithmetic of all ranks together."""
        self.transfers.store.open_for(arithmetic)

    def _with_one_block(self, work: Callable[[], T]) -> T:
        """Calls what computes in a pool of block 0 alone."""
        self._make_pools(num_gpu_blocks=1, num_cpu_blocks=0)
        result = work()  # a runner that raises here is closed
        self._drop_pools()
        return result

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._make_pools(num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks)
        self.executor.prepare()
        self.transfers.bind(self.pools)

    def _make_pools(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._drop_pools()  # the old ones go before the new ones come
        try:
            self.pools = self.executor.make_pools(
                num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
            )
        except MemoryError as error:
            on_gpu = "" if self.executor.device.type == "cpu" else "gpu_memory_utilization, "
            raise MemoryError(
                f"no memory for {num_gpu_blocks} GPU and {num_cpu_blocks} CPU blocks; lower "
                f"{on_gpu}kv_cache_memory or swap_space ({error})"
            ) from None

    def _drop_pools(self) -> None:
        self.transfers.unbind()
        if self.pools is not NO_POOLS:
            self.pools.close()
            self.pools = NO_POOLS
            self.executor.drop_pools()

    def apply(self, sections: Step) -> int:
        return self.pools.apply(sections)

    def execute(self, batch: Batch) -> BatchOutput:
        if self.pools is NO_POOLS:
            raise RuntimeError("init_cache_engine comes first")
        return self.executor.execute(batch)

    def settle(self, settlement: Settlement) -> None:
        self.executor.settle(settlement)

    def make_proposer(self) -> Proposer:
        drafts = self._draft_model
        return make_proposer(
            self._served.speculation,
            vocab_size=self._model.vocab_size,
            model=None if drafts is None else drafts.make_proposer(),
        )

    @property
    def launches(self) -> bool:
        return self.executor.launches

    def launch(self, batch: Batch) -> Launched:
        if self.pools is NO_POOLS:
            raise RuntimeError("init_cache_engine comes first")
        return self.executor.launch(batch)

    @property
    def adapter_slots(self) -> Mapping[str, int]:
        return self._adapters.slots.of

    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        return self._adapters.open(name, folder)

    def add_adapter(self, opened: OpenedAdapter) -> None:
        self._adapters.add(opened)
        self._model = replace(self._model, adapters=self._adapters.slots.loaded)

    def remove_adapter(self, adapter: Adapter) -> None:
        self._adapters.remove(adapter)
        self._model = replace(self._model, adapters=self._adapters.slots.loaded)

    def memory(self) -> MemoryReport | None:
        weights, kv = self.executor.weights_bytes, self.pools.gpu_bytes
        if (drafts := self._draft_model) is not None:
            weights, kv = weights + drafts.executor.weights_bytes, kv + drafts.kv_bytes
        return MemoryReport(
            weights=weights,
            kv=kv,
            swap=self.pools.cpu_bytes,
            adapters=self._adapters.memory.reserved,
            **self.executor.device.use()._asdict(),
        )

    def begin_recording(self, options: ProfileOptions) -> Recording:
        return self.executor.begin_recording(options)

    def close(self, failure: str | None = None) -> None:
        self.transfers.close()
