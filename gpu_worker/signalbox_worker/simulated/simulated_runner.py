"""A runner with no model and no device, but with a memory that real mistakes would corrupt.

Its KV is one 64-bit number a slot: a hash of all tokens up to that position, continued from what
the slot before holds. Its next token is a hash of all that it reads through the block table. So a
wrong block map, a stale block, a lost copy or another prefix's block changes its output, and
`expected_tokens` says what the output should have been, with no blocks in between.

There are no logits: penalties, biases and filters change nothing, what may be drawn does.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.model import (
    Adapter,
    ModelInfo,
    StoreCapacity,
    WorkerCapacity,
    WorkerRank,
)
from signalbox_contract.step import Step
from signalbox_worker.adapters.adapter_config import read_adapter_config
from signalbox_worker.adapters.peft_adapter import CONFIG, describe_adapter
from signalbox_worker.batch.adapter_slots import AdapterSlots, OpenedAdapter
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.device.inspection import BackendInUse
from signalbox_worker.kv_store.block_store import BlockStore
from signalbox_worker.kv_store.memory_store import MemoryStore
from signalbox_worker.kv_store.pool_transfers import PoolTransfers
from signalbox_worker.kv_store.store_threads import StoreThreads, no_store
from signalbox_worker.loading.byte_tokenizer import END_OF_SEQUENCE_ID, tokenizer_files
from signalbox_worker.runner.runner import Runner
from signalbox_worker.simulated.hashing import (
    POSITION,
    SEGMENT,
    TOKEN,
    UInt64Array,
    adapter_key,
    mix,
)
from signalbox_worker.simulated.simulated_config import SimulatedConfig
from signalbox_worker.simulated.simulated_draws import draw, made_up_logprobs
from signalbox_worker.simulated.simulated_pooler import SimulatedPooler
from signalbox_worker.simulated.stage_times import SimulatedStep, StageTimes

POISON = 0xDEAD_BEEF_DEAD_BEEF
"""Content of a block before its first write."""

_MAX_GATHERED = 1 << 21  # slots read at once: 16 MiB


class SimulatedRunner(Runner):
    """Tests plant an error by overriding one method."""

    def __init__(
        self, config: SimulatedConfig | None = None, *, store: BlockStore | None = None
    ) -> None:
        """`store` is used instead of one of the runner's own."""
        self.config = config or SimulatedConfig()
        num_slots = self.config.max_model_len + self.config.block_size
        self._weights = _weights(np.arange(num_slots, dtype=np.uint64))
        self.stages = StageTimes(self.config.stages)
        self._adapters = AdapterSlots(self.config.adapters)
        self._set_adapter_keys()
        self._pooler = self._make_pooler()
        self.gpu_kv: UInt64Array = self._make_pool(0)
        self.cpu_kv: UInt64Array = self._make_pool(0)
        if store is None and self.config.num_store_blocks:
            store = MemoryStore(
                block_bytes=self.block_bytes, num_blocks=self.config.num_store_blocks
            )
        capacity = StoreCapacity(kind="memory")
        self.transfers = PoolTransfers(StoreThreads(store, capacity) if store else no_store())

    @property
    def block_bytes(self) -> int:
        return self.config.block_size * np.dtype(np.uint64).itemsize

    @property
    def backends(self) -> tuple[BackendInUse, ...]:
        return (BackendInUse("model", "simulated"),)

    @property
    def model(self) -> ModelInfo:
        return ModelInfo(
            name=self.config.name,
            architecture="Simulated",
            dtype="float32",
            vocab_size=self.config.vocab_size,
            max_model_len=self.config.max_model_len,
            eos_token_ids=(END_OF_SEQUENCE_ID,),
            sampling_defaults=self.config.sampling_defaults,
            arithmetic=self.config.arithmetic,
            adapters=self._adapters.loaded,
            pooling=self.config.pooling,
        )

    @property
    def adapter_slots(self) -> Mapping[str, int]:
        return self._adapters.of

    def open_adapter(self, name: str, folder: str) -> OpenedAdapter:
        read_adapter_config(Path(folder) / CONFIG)
        return OpenedAdapter(describe_adapter(name, Path(folder)), None)

    def add_adapter(self, opened: OpenedAdapter) -> None:
        self._adapters.add(opened.info)
        self._set_adapter_keys()

    def remove_adapter(self, adapter: Adapter) -> None:
        self._adapters.remove(adapter)
        self._set_adapter_keys()

    def _set_adapter_keys(self) -> None:
        slots = self._adapters.of
        keys = np.zeros(max(slots.values(), default=-1) + 2, dtype=np.uint64)
        for sha256, slot in slots.items():
            keys[slot] = adapter_key(sha256)
        self._adapter_keys = keys  # NO_ADAPTER is the last

    def tokenizer_files(self) -> dict[str, bytes]:
        return tokenizer_files(
            vocab_size=self.config.vocab_size, max_model_len=self.config.max_model_len
        )

    def profile(self) -> WorkerCapacity:
        num_stages = len(self.config.stages)
        return WorkerCapacity(
            block_size=self.config.block_size,
            num_gpu_blocks=self.config.num_gpu_blocks,
            num_cpu_blocks=self.config.num_cpu_blocks,
            block_bytes=self.block_bytes,
            max_num_seqs=self.config.max_num_seqs,
            max_num_batched_tokens=self.config.max_num_batched_tokens,
            pipeline_parallel_size=num_stages,
            max_steps_in_flight=num_stages + 1 if num_stages > 1 else 1,
            ranks=_ranks(num_stages) if num_stages > 1 else (),
            store=self.transfers.store_capacity,
            block_format=f"simulated, {self.config.block_size}"
            if self.config.num_cpu_blocks and num_stages == 1
            else "",
        )

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._pooler = self._make_pooler()
        self.gpu_kv = self._make_pool(num_gpu_blocks)
        self.cpu_kv = self._make_pool(num_cpu_blocks)
        self.transfers.bind(self)

    def cpu_block(self, index: int) -> memoryview:
        return memoryview(self.cpu_kv[index]).cast("B")

    def copies_begun(self) -> Callable[[], None]:
        return lambda: None  # they end within the step that names them

    def close(self, failure: str | None = None) -> None:
        self.transfers.close()

    def apply(self, sections: Step) -> int:
        start, moves = time.monotonic_ns(), sections.block_moves
        for target, source, (src, dst) in (
            (self.cpu_kv, self.gpu_kv, moves.swap_out),
            (self.gpu_kv, self.cpu_kv, moves.swap_in),
            (self.gpu_kv, self.gpu_kv, moves.copy),
        ):
            target[dst] = source[src]
        return time.monotonic_ns() - start

    def execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        sums = self._forward(batch)
        duration = self._duration_ns(batch)
        if duration:
            time.sleep(max(0, duration - (time.perf_counter_ns() - start)) / 1e9)
        forwarded = time.perf_counter_ns()
        samples = self._draw(batch, sums)
        samples.forward_ns = forwarded - start
        samples.sample_ns = time.perf_counter_ns() - forwarded
        return samples

    @property
    def launches(self) -> bool:
        return len(self.config.stages) > 1

    def launch(self, batch: Batch) -> SimulatedStep:
        """Computes at once, and says so when the last stage would have: only time is simulated."""
        samples = self._draw(batch, self._forward(batch))
        samples.forward_ns, now_ns = self._duration_ns(batch), time.monotonic_ns()
        ends_at_ns, samples.stages = self.stages.enter(now_ns, samples.forward_ns)
        samples.stages_ns = ends_at_ns - now_ns
        return SimulatedStep(samples, ends_at_ns)

    def _duration_ns(self, batch: Batch) -> int:
        return self.config.step_ns + self.config.token_ns * len(batch.token_ids)

    def _forward(self, batch: Batch) -> UInt64Array:
        self._write(batch)
        return self._attend(batch, batch.rows.token_index)

    def _make_pooler(self) -> SimulatedPooler | None:
        return None if self.config.pooling is None else SimulatedPooler(self.config.pooling)

    def _draw(self, batch: Batch, sums: UInt64Array) -> BatchOutput:
        if self._pooler is not None and batch.pooling is not None:
            return self._pooler.pool(batch, batch.pooling, self._attend)
        samples = draw(sums, batch.rows, vocab_size=self.config.vocab_size)
        if batch.prompt_rows is not None:
            samples.prompt_logprobs = self._prompt_logprobs(batch, batch.prompt_rows)
        return samples

    def _make_pool(self, num_blocks: int) -> UInt64Array:
        return np.full((num_blocks, self.config.block_size), POISON, dtype=np.uint64)

    def _write(self, batch: Batch) -> None:
        """Writes each new token's slot, continuing from the slot before the first of them."""
        slots, first = self.gpu_kv.reshape(-1), batch.query_start[:-1]
        own = mix(
            batch.token_ids.astype(np.uint64) * np.uint64(TOKEN)
            + batch.positions.astype(np.uint64) * np.uint64(POSITION)
            + (self._adapter_keys[batch.adapters] if batch.adapters is not None else np.uint64(0))
            + (_segments(batch.token_types) if batch.token_types is not None else np.uint64(0))
        )
        sums = np.cumsum(own, dtype=np.uint64)
        offset = self._before(batch, batch.positions[first]) - (sums[first] - own[first])
        slots[batch.slot_mapping] = sums + np.repeat(offset, np.diff(batch.query_start))

    def _before(self, batch: Batch, starts: Int64Array) -> UInt64Array:
        """Returns [B], what the slot before each sequence's first new position holds, or 0."""
        last = np.maximum(starts - 1, 0)
        size = self.config.block_size
        blocks = batch.block_tables[np.arange(len(starts)), last // size]
        return np.where(starts > 0, self.gpu_kv[blocks, last % size], np.uint64(0))

    def _attend(self, batch: Batch, tokens: Int64Array) -> UInt64Array:
        """Returns [num_rows], a weighted sum over the context of each of some tokens."""
        owners = np.searchsorted(batch.query_start, tokens, side="right") - 1
        contexts = batch.positions[tokens] + 1
        sums = np.empty(len(tokens), dtype=np.uint64)
        num_blocks = -(-int(contexts.max(initial=0)) // self.config.block_size)
        num_rows = max(1, _MAX_GATHERED // max(1, num_blocks * self.config.block_size))
        for start in range(0, len(tokens), num_rows):
            part = slice(start, start + num_rows)
            tables = batch.block_tables[owners[part], :num_blocks]
            sums[part] = self._read(tables, contexts[part])
        return sums

    def _read(self, tables: NDArray[np.int32], contexts: Int64Array) -> UInt64Array:
        num_slots = tables.shape[1] * self.config.block_size
        context = self.gpu_kv[tables].reshape(len(tables), num_slots)
        context *= self._weights[:num_slots]
        context *= np.arange(num_slots) < contexts[:, None]
        total: UInt64Array = context.sum(axis=1, dtype=np.uint64)
        return total

    def _prompt_logprobs(self, batch: Batch, rows: PromptRows) -> list[Logprobs]:
        """Returns simulated log probabilities of each token, from its context's blocks."""
        best = mix(self._attend(batch, rows.token_index)) % np.uint64(self.config.vocab_size)
        return [
            made_up_logprobs(row, best=likely, token=token, num=num, size=self.config.vocab_size)
            for row, (likely, token, num) in enumerate(
                zip(best.tolist(), rows.targets.tolist(), rows.num_logprobs.tolist(), strict=True)
            )
        ]


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


def _segments(token_types: Int32Array) -> UInt64Array:
    return token_types.astype(np.uint64) * np.uint64(SEGMENT)


def _weights(positions: UInt64Array) -> UInt64Array:
    return mix(positions) | np.uint64(1)
