"""An executor with no model and no device, but with a memory that real mistakes would corrupt.

Its KV is one 64-bit number a slot: a hash of all tokens up to that position, continued from what
the slot before holds. Its next token is a hash of all that it reads through the block table. So a
wrong block map, a stale block, a lost copy or another prefix's block changes its output. A state of
recurrent layers is the same hash, continued from the state that a step reads, in all blocks of it.

Nothing is drawn from logits: penalties, biases and filters change nothing, what may be drawn does.
"""

import time

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.cache_groups import NO_BLOCK, num_token_groups
from signalbox_contract.model import ModelInfo
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.batch.state_runs import Settlement, rows_without_state
from signalbox_worker.device.inspection import BackendInUse
from signalbox_worker.device.stage_layers import all_layers
from signalbox_worker.kv.cache.block_pools import BlockPools
from signalbox_worker.kv.cache.capacity import Footprint
from signalbox_worker.kv.cache.measured_device import HostDevice
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.loading.byte_tokenizer import END_OF_SEQUENCE_ID
from signalbox_worker.runner.simulated.hashing import (
    PART,
    POSITION,
    SEGMENT,
    TOKEN,
    UInt64Array,
    mix,
)
from signalbox_worker.runner.simulated.simulated_adapters import SimulatedAdapters
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_draws import draw, made_up_logprobs
from signalbox_worker.runner.simulated.simulated_pooler import SimulatedPooler
from signalbox_worker.runner.simulated.stage_times import SimulatedStep, StageTimes

POISON = 0xDEAD_BEEF_DEAD_BEEF
"""Content of a block before its first write."""

_MAX_GATHERED = 1 << 21  # slots read at once: 16 MiB


class SimulatedExecutor(Executor):
    """Computes in the blocks that it is given, and in nothing else."""

    adapters: SimulatedAdapters
    backends = (BackendInUse("model", "simulated"),)
    layers = all_layers(1)
    weights_bytes = 0

    def __init__(self, config: SimulatedConfig) -> None:
        self.config = config
        self.device = HostDevice()
        self.adapters = SimulatedAdapters(config.adapters)
        self.stages = StageTimes(config.stages)
        self._width = len(config.groups)
        self._num_token_groups = num_token_groups(config.groups)
        self._state_values: UInt64Array = np.empty(0, dtype=np.uint64)  # [T], of the batch
        self._kept: UInt64Array = self._state_values  # hashes of its drafts themselves
        num_slots = config.max_model_len + config.block_size
        self._weights = mix(np.arange(num_slots, dtype=np.uint64)) | np.uint64(1)
        self.drop_pools()

    @property
    def model(self) -> ModelInfo:  # type: ignore[override]  # read alone
        return ModelInfo(
            name=self.config.name,
            architecture="Simulated",
            dtype="float32",
            vocab_size=self.config.vocab_size,
            max_model_len=self.config.max_model_len,
            eos_token_ids=(END_OF_SEQUENCE_ID,),
            sampling_defaults=self.config.sampling_defaults,
            numerics=self.config.numerics,
            adapters=self.adapters.slots.loaded,
            pooling=self.config.pooling,
        )

    @property
    def footprint(self) -> Footprint:
        block_size = self.config.block_size
        return Footprint(
            block_size=block_size,
            block_bytes=block_size * np.dtype(np.uint64).itemsize,
            max_model_len=self.config.max_model_len,
            groups=self.config.groups,
        )

    def make_pools(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> BlockPools:
        pools = BlockPools(
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
            block_bytes=self.footprint.block_bytes,
        )
        self.gpu_kv, self.cpu_kv = pools.gpu_pool.view(np.uint64), pools.cpu_pool.view(np.uint64)
        for kv in (self.gpu_kv, self.cpu_kv):
            kv.fill(POISON)
        if self.config.pooling is not None:
            self._pooler = SimulatedPooler(self.config.pooling)
        return pools

    def drop_pools(self) -> None:
        nothing: UInt64Array = np.empty((0, self.config.block_size), dtype=np.uint64)
        self.gpu_kv = self.cpu_kv = nothing

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

    def _draw(self, batch: Batch, sums: UInt64Array) -> BatchOutput:
        if batch.pooling is not None:
            return self._pooler.pool(batch, batch.pooling, self._attend)
        samples = draw(sums, batch.rows, vocab_size=self.config.vocab_size)
        if batch.prompt_rows is not None:
            samples.prompt_logprobs = self._prompt_logprobs(batch, batch.prompt_rows)
        return samples

    def _write(self, batch: Batch) -> None:
        """Writes each new token's slot, continuing from the slot before the first of them."""
        slots, first = self.gpu_kv.reshape(-1), batch.query_start[:-1]
        types = 0 if batch.token_types is None else batch.token_types.astype(np.uint64)
        own = mix(
            batch.token_ids.astype(np.uint64) * np.uint64(TOKEN)
            + batch.positions.astype(np.uint64) * np.uint64(POSITION)
            + (self.adapters.keys[batch.adapters] if batch.adapters is not None else np.uint64(0))
            + types * np.uint64(SEGMENT)
        )
        sums = np.cumsum(own, dtype=np.uint64)
        offset = self._before(batch, batch.positions[first]) - (sums[first] - own[first])
        lengths = np.diff(batch.query_start)
        values = sums + np.repeat(offset, lengths)
        if self._width == 1:
            slots[batch.slot_mapping] = values
            return
        slots[batch.slot_mapping[:, : self._num_token_groups]] = values[:, None]
        if (states := batch.states) is not None:
            offset = self._read_states(states) - (sums[first] - own[first])
            self._state_values = sums + np.repeat(offset, lengths)
            self._kept = own[rows_without_state(states)]
            self._leave_states(states)

    def settle(self, settlement: Settlement) -> None:
        states, own = settlement.states, self._kept[settlement.rows]
        bounds = states.run_start[states.first_runs]
        first, sums = bounds[:-1], np.cumsum(own, dtype=np.uint64)
        offset = self._read_states(states) - (sums[first] - own[first])
        self._state_values = sums + np.repeat(offset, np.diff(bounds))
        self._leave_states(states)

    def _read_states(self, states: StateArrays) -> UInt64Array:
        """Returns [B], what the state that each sequence continues is of; any number if its blocks
        do not agree on it."""
        parts = np.arange(states.reads.shape[1], dtype=np.uint64) * np.uint64(PART)
        said = self.gpu_kv[states.reads] - parts[:, None]
        difference = mix(said - said[:, :1, :1]).sum(axis=(1, 2), dtype=np.uint64)  # mix(0) is 0
        return np.where(states.reads[:, 0] < 0, np.uint64(0), said[:, 0, 0] + difference)

    def _leave_states(self, states: StateArrays) -> None:
        parts = np.arange(states.writes.shape[1], dtype=np.uint64) * np.uint64(PART)
        is_left = states.writes[:, 0] != NO_BLOCK
        values = self._state_values[states.run_start[1:][is_left] - 1]
        self.gpu_kv[states.writes[is_left]] = (values[:, None] + parts)[:, :, None]

    def _before(self, batch: Batch, starts: Int64Array) -> UInt64Array:
        """Returns [B], what the slot before each sequence's first new position holds, or 0."""
        last = np.maximum(starts - 1, 0)
        size = self.config.block_size
        blocks = batch.block_tables[np.arange(len(starts)), last // size * self._width]
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
            tables = batch.block_tables[owners[part], : num_blocks * self._width]
            sums[part] = 0
            for column, group in enumerate(self.config.groups[: self._num_token_groups]):
                of_group = tables[:, column :: self._width]
                sums[part] += self._read(of_group, contexts[part], window=group.window)
        if batch.states is not None:
            sums += mix(self._state_values[tokens])
        return sums

    def _read(self, tables: NDArray[np.int32], contexts: Int64Array, *, window: int) -> UInt64Array:
        num_slots = tables.shape[1] * self.config.block_size
        context = self.gpu_kv[tables].reshape(len(tables), num_slots)
        context *= self._weights[:num_slots]
        positions = np.arange(num_slots)
        context *= positions < contexts[:, None]
        if window:
            context *= positions >= contexts[:, None] - window
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
