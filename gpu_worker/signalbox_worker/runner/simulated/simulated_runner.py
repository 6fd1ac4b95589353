"""The runner of a simulated model: its capacity is configured, not measured."""

from signalbox_contract.model import StoreCapacity, WorkerCapacity, WorkerRank
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store.block_store import BlockStore
from signalbox_worker.kv.store.memory_store import MemoryStore
from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.kv.store.store_threads import StoreThreads, no_store
from signalbox_worker.runner.loading.byte_tokenizer import tokenizer_files
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.runner_model import RunnerModel, WithOneBlock, most_drafts
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_executor import SimulatedExecutor


class SimulatedModel(RunnerModel):
    """Description of the model of a simulated worker, from its settings."""

    def __init__(self, executor: SimulatedExecutor) -> None:
        self.model = executor.model
        self._executor, self.speculation = executor, executor.config.speculation
        self._config, self._block_bytes = executor.config, executor.footprint.block_bytes

    def tokenizer_files(self) -> dict[str, bytes]:
        config = self._config
        return tokenizer_files(vocab_size=config.vocab_size, max_model_len=config.max_model_len)

    def measure(self, with_one_block: WithOneBlock, store: StoreCapacity | None) -> WorkerCapacity:
        config, num_stages = self._config, len(self._config.stages)
        has_blocks = config.num_cpu_blocks and num_stages == 1
        return WorkerCapacity(
            block_size=config.block_size,
            num_gpu_blocks=config.num_gpu_blocks,
            num_cpu_blocks=config.num_cpu_blocks,
            block_bytes=self._block_bytes,
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            pipeline_parallel_size=num_stages,
            max_steps_in_flight=num_stages + 1 if num_stages > 1 else 1,
            ranks=_ranks(num_stages) if num_stages > 1 else (),
            store=store,
            groups=config.groups,
            arithmetic=config.arithmetic,
            block_format=f"simulated, {config.block_size}" if has_blocks else "",
            max_draft_tokens=most_drafts(
                self.speculation,
                self._executor,
                ParallelConfig(pipeline_parallel_size=num_stages),
            ),
        )


class SimulatedRunner(LocalRunner):
    """The `LocalRunner` of a simulated model. Tests plant an error by overriding one method."""

    def __init__(
        self, config: SimulatedConfig | None = None, *, store: BlockStore | None = None
    ) -> None:
        """`store` is used instead of one of the runner's own."""
        self.config = config or SimulatedConfig()
        self.simulation = SimulatedExecutor(self.config)
        if store is None and self.config.num_store_blocks:
            store = MemoryStore(
                block_bytes=self.simulation.footprint.block_bytes,
                num_blocks=self.config.num_store_blocks,
            )
        threads = StoreThreads(store, StoreCapacity(kind="memory")) if store else no_store()
        served = SimulatedModel(self.simulation)
        super().__init__(self.simulation, served, PoolTransfers(threads))

    def memory(self) -> None:
        """Tells nothing: operators would take it for that of a model."""


def _ranks(num_stages: int) -> tuple[WorkerRank, ...]:
    """Returns ranks as a model's would be placed, without hosts and layers."""
    return tuple(
        WorkerRank(
            rank=rank,
            stage=num_stages - 1 - rank,
            tensor_parallel_rank=0,
            host="",
            first_layer=0,
            num_layers=0,
        )
        for rank in range(num_stages)
    )
