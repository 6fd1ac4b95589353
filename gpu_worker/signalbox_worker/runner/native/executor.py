"""Runs a step through a native program: one call computes the batch and draws the greedy rows.

Rows that sample, or that report logprobs, get their logits from the call and go on to the sampler.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.group import CalledOff, Group
from signalbox_kernels.program import Program
from signalbox_kernels.structs import AttentionArrays, StepArrays
from signalbox_worker.batch.arrays import FloatArray, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import TokenRuns
from signalbox_worker.batch.sequence_failures import NONE_LEFT
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.device.inspection import BackendInUse, ProfileOptions
from signalbox_worker.device.spans import span
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.kv.cache.block_pools import BlockPools
from signalbox_worker.kv.cache.capacity import Footprint
from signalbox_worker.kv.cache.measured_device import HostDevice
from signalbox_worker.models.pooling.hidden_states import HostStates
from signalbox_worker.runner.executors.drawn_logits import add_logits
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.executors.prompt_logprobs import parts_of, prompt_logprobs
from signalbox_worker.runner.native.arithmetic import digest_of, fixed_step
from signalbox_worker.runner.native.native_model import NativeModel, NativePooling
from signalbox_worker.runner.native.program_parts import RESIDUAL
from signalbox_worker.runner.native.recording import NativeRecording
from signalbox_worker.sampling.sampler import NOT_FINITE, Sampler

TakeHidden = Callable[[Batch, FloatArray], None]
"""Takes a batch, and [num_tokens, hidden_size] that the next run overwrites."""
_STEP_DIVISOR = 8
"""Part of the largest step that a start runs; its attention is by blocks, so that all buffers grow
with tokens and rows."""


class NativeExecutor(Executor):
    """A program with the sampler for what it does not draw itself."""

    backends = (BackendInUse("attention", "native"), BackendInUse("sampling", "native"))

    def __init__(
        self,
        loaded: NativeModel,
        layers: StageLayers,
        *,
        group: Group | None = None,
        draws: bool = True,
    ) -> None:
        """Args:
        layers: those of the program.
        group: tensor-parallel ranks of the stage; None if there is one.
        draws: False if another process gets the logits that this one has a part of.
        """
        self.model, self.adapters = loaded.info, loaded.adapters
        self.program: Program = loaded.program
        self.tables = loaded.tables
        self.take_hidden: TakeHidden | None = None
        """Takes the hidden states behind the layers, before the last norm, of each batch; None
        if nothing reads them."""
        self.sampler: Sampler[FloatArray] = loaded.sampler
        self.layers, self.device = layers, HostDevice()
        self.weights_bytes = self.program.weights_bytes
        self._group, self._draws, self._is_last = group, draws, layers.is_last
        self._groups = loaded.groups
        self._vocab_size = self.program.shape.vocab_size
        self._logits = np.empty((0, self._vocab_size), dtype=np.float32)
        self.drop_pools()

    @property
    def is_batch_invariant(self) -> bool:
        return True

    @property
    def footprint(self) -> Footprint:
        shape = self.program.shape
        return Footprint(
            block_size=shape.block_size,
            block_bytes=shape.block_bytes,
            max_model_len=self.model.max_model_len,
            step_divisor=_STEP_DIVISOR,
            adapters_bytes=self.adapters.memory.left,
            groups=self._groups,
        )

    @property
    def form(self) -> tuple[object, ...]:
        return self.backends, self.program.weights

    def make_pools(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> BlockPools:
        pools = BlockPools(
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
            block_bytes=self.program.shape.block_bytes,
        )
        self.program.bind(pools.gpu_pool)
        return pools

    def drop_pools(self) -> None:
        self.program.bind(np.zeros((1, self.program.shape.block_bytes), dtype=np.uint8))

    @property
    def num_collectives(self) -> int:
        return 0 if self._group is None else self._group.num_joined

    @property
    def collective_ns(self) -> int:
        return 0 if self._group is None else self._group.waited_ns

    def abort_collectives(self) -> None:
        if self._group is not None:
            self._group.call_off()

    def begin_recording(self, options: ProfileOptions) -> NativeRecording:
        return NativeRecording(options, self.program)

    def execute(self, batch: Batch) -> BatchOutput:
        if not self._is_last:
            return self._execute_stage(batch)
        start, rows = time.perf_counter_ns(), batch.rows
        tokens, row_of = np.unique(rows.token_index, return_inverse=True)
        drawn = np.flatnonzero(rows.needs_logits)
        read = drawn if rows.returns_logits is None else np.flatnonzero(rows.reads_logits)
        if batch.wanted is None:
            wanted, suppressed = np.unique(row_of[read]), rows.suppressed
        else:
            wanted = np.searchsorted(tokens, batch.wanted.tokens)
            suppressed = batch.wanted.suppressed
        runs = _suppressed(suppressed, row_of, len(tokens))
        arrays = self._arrays(batch, tokens, wanted, runs)
        with span("forward"):
            self._run(arrays, batch.hidden)
        if self.take_hidden is not None:
            self.take_hidden(batch, self.last_hidden(len(batch.token_ids)))
        forwarded = time.perf_counter_ns()
        if not self._draws:
            return self._give_prompt_logits(batch, forwarded - start)
        with span("sample"), _computed(batch):
            samples = self._draw(batch, arrays, row_of, drawn)
        samples.forward_ns = forwarded - start
        samples.sample_ns = time.perf_counter_ns() - forwarded
        return samples

    def _draw(
        self, batch: Batch, arrays: StepArrays, row_of: Int64Array, drawn: Int64Array
    ) -> BatchOutput:
        """Args:
        row_of: row of the program that each draw is of.
        drawn: draws that the sampler makes.
        """
        samples = _greedy(arrays, row_of)
        if len(drawn):
            logits_row = arrays.logits_of_row[row_of[drawn]].astype(np.int64)
            rows = batch.rows.take(drawn)
            _merge(samples, self.sampler(self._logits, rows, logits_row), drawn)
        if batch.rows.returns_logits is not None:  # before those of prompts overwrite them
            logits, logits_row = self._logits, arrays.logits_of_row[row_of].astype(np.int64)
            add_logits(samples, batch.rows, logits_row, lambda row, token: logits[row, token])
        if batch.prompt_rows is not None:
            samples.prompt_logprobs = prompt_logprobs(
                batch.prompt_rows, self.sampler, self._logits_of
            )
        return samples

    def _give_prompt_logits(self, batch: Batch, forward_ns: int) -> BatchOutput:
        """Computes the parts of logits that another process reports log probabilities of."""
        if batch.prompt_rows is not None:
            for part in parts_of(batch.prompt_rows):
                self._logits_of(batch.prompt_rows.token_index[part])
        return BatchOutput(token_ids=np.empty(0, dtype=np.int32), forward_ns=forward_ns)

    def _execute_stage(self, batch: Batch) -> BatchOutput:
        """Computes the hidden states that the next stage continues with."""
        start = time.perf_counter_ns()
        with span("forward"):
            hidden = self.hidden_states(batch).copy().view(np.uint8)
        none = np.empty(0, dtype=np.int32)
        forward_ns = time.perf_counter_ns() - start
        return BatchOutput(token_ids=none, hidden=hidden, forward_ns=forward_ns)

    def settle(self, settlement: Settlement) -> None:
        self._run(_settling(settlement))

    def arithmetic(self, *, max_num_tokens: int) -> str:
        shape = self.program.shape
        batch, num_blocks = fixed_step(
            shape,
            self._groups,
            max_num_tokens=max_num_tokens,
            max_model_len=self.model.max_model_len,
            takes_hidden=not self.layers.is_first,
        )
        self.program.bind(np.zeros((num_blocks, shape.block_bytes), dtype=np.uint8))
        output = self.execute(batch)
        self.drop_pools()
        has_logits = self._is_last and self._draws
        num_logits = int(batch.rows.needs_logits.sum()) if has_logits else 0
        return digest_of(self.model.numerics, output, self._logits[:num_logits])

    def hidden_states(self, batch: Batch) -> FloatArray:
        """Computes a batch without the head; returns [num_tokens, hidden_size], not normed, which
        the next run overwrites."""
        none = np.empty(0, dtype=np.int64)
        self._run(self._arrays(batch, none, none, _suppressed(None, none, 0)), batch.hidden)
        return self.last_hidden(len(batch.token_ids))

    def _run(self, arrays: StepArrays, hidden: NDArray[np.uint8] | None = None) -> None:
        """Args: hidden: what the stage before has computed; None on the first."""
        if hidden is not None:
            self.last_hidden(len(hidden))[:] = hidden.view(np.float32)
        try:
            self.program.run(arrays)
        except CalledOff as error:
            raise DeviceLost(str(error)) from None

    def last_hidden(self, num_tokens: int) -> FloatArray:
        """Returns the program's hidden states, [num_tokens, hidden_size], until the next run."""
        width = self.program.shape.hidden_size
        dtype = np.dtype(np.float32)
        rows = self.program.view(RESIDUAL, width=width, num_tokens=num_tokens, dtype=dtype)
        return rows[:, :width]

    def _logits_of(self, tokens: Int64Array) -> FloatArray:
        """Runs the head again over the hidden states that the step left of some tokens."""
        self._reserve(len(tokens))
        self._run(_head_alone(tokens, self._logits))
        return self._logits[: len(tokens)]

    def _reserve(self, num_rows: int) -> None:
        if num_rows > len(self._logits):
            self._logits = np.empty((num_rows, self._vocab_size), dtype=np.float32)

    def _arrays(
        self, batch: Batch, tokens: Int64Array, wanted: Int64Array, suppressed: TokenRuns
    ) -> StepArrays:
        """Args:
        tokens: [num_rows] that need the head.
        wanted: rows of which all logits are, ascending.
        suppressed: tokens that the head excludes, of each row.
        """
        self._reserve(len(wanted))
        logits_of_row = np.full(len(tokens), -1, dtype=np.int32)
        logits_of_row[wanted] = np.arange(len(wanted))
        num_groups, (num_seqs, num_entries) = len(self._groups), batch.block_tables.shape
        by_row = batch.block_tables.reshape(num_seqs, num_entries // num_groups, num_groups)
        by_group = np.ascontiguousarray(by_row.transpose(2, 0, 1))
        return StepArrays(
            token_ids=batch.token_ids,
            positions=batch.positions,
            attention=AttentionArrays(
                slots=np.ascontiguousarray(batch.slot_mapping.T),
                query_start=batch.query_start,
                context_lens=batch.context_lens,
                block_tables=by_group.reshape(num_groups * num_seqs, num_entries // num_groups),
            ),
            row_tokens=tokens,
            logits_of_row=logits_of_row,
            suppressed_end=suppressed.ends,
            suppressed=suppressed.token_ids,
            argmax=np.empty(len(tokens), dtype=np.int32),
            is_finite=np.empty(len(tokens), dtype=np.uint8),
            logits=self._logits,
            adapters=batch.adapters,
            token_types=batch.token_types,
            states=batch.states,
        )


@contextmanager
def _computed(batch: Batch) -> Iterator[None]:
    """Lets no MemoryError ask for parts of a batch whose forward pass has changed states."""
    try:
        yield
    except MemoryError as error:
        if batch.states is None:
            raise
        raise RuntimeError(f"no memory to draw, once states have changed: {error}") from error


def _suppressed(of_draws: TokenRuns | None, row_of: Int64Array, num_rows: int) -> TokenRuns:
    """Returns the tokens that the head excludes; all draws from one row exclude the same.

    Args: row_of: [draws], row of each.
    """
    if of_draws is None:
        return TokenRuns(np.zeros(num_rows, dtype=np.int32), np.empty(0, dtype=np.int32))
    _, first_draw = np.unique(row_of, return_index=True)
    return of_draws.take(first_draw)


def _head_alone(tokens: Int64Array, logits: NDArray[np.float32]) -> StepArrays:
    """A step of no tokens, whose rows are tokens of the step before."""
    num_rows = len(tokens)
    none = np.empty(0, dtype=np.int64)
    return StepArrays(
        token_ids=none,
        positions=none,
        attention=AttentionArrays(
            slots=none,
            query_start=np.zeros(1, dtype=np.int64),
            context_lens=none,
            block_tables=np.empty((0, 0), dtype=np.int32),
        ),
        row_tokens=tokens,
        logits_of_row=np.arange(num_rows, dtype=np.int32),
        suppressed_end=np.zeros(num_rows, dtype=np.int32),
        suppressed=np.empty(0, dtype=np.int32),
        argmax=np.empty(num_rows, dtype=np.int32),
        is_finite=np.empty(num_rows, dtype=np.uint8),
        logits=logits,
    )


def _settling(settlement: Settlement) -> StepArrays:
    """Returns a step that computes rows which the program has kept, and does no more than leave
    their states."""
    unread = np.zeros(len(settlement.rows), dtype=np.int64)
    return replace(
        _head_alone(unread[:0], np.empty((0, 0), dtype=np.float32)),
        token_ids=unread,
        positions=unread,
        states=settlement.states,
        settled=settlement.rows,
    )


def _greedy(arrays: StepArrays, row_of: Int64Array) -> BatchOutput:
    tokens = arrays.argmax[row_of]
    failed = dict.fromkeys(np.flatnonzero(tokens < 0).tolist(), NONE_LEFT)
    bad = np.flatnonzero(arrays.is_finite[row_of] == 0).tolist()
    return BatchOutput(token_ids=tokens, failed=failed | dict.fromkeys(bad, NOT_FINITE))


def _merge(samples: BatchOutput, drawn: BatchOutput, rows: Int64Array) -> None:
    """Writes the tokens that the sampler drew for `rows` to their places."""
    samples.token_ids[rows] = drawn.token_ids
    for row in rows.tolist():
        samples.failed.pop(row, None)
    samples.failed |= {int(rows[row]): reason for row, reason in drawn.failed.items()}
    samples.logprobs = [Logprobs(int(rows[entry.row]), *entry[1:]) for entry in drawn.logprobs]


class NativePoolingExecutor(NativeExecutor):
    """A program without a head, whose hidden states are normed and pooled in NumPy."""

    def __init__(self, loaded: NativeModel, layers: StageLayers, pooling: NativePooling) -> None:
        super().__init__(loaded, layers)
        self._pooling = pooling

    def arithmetic(self, *, max_num_tokens: int) -> str:
        return ""  # it draws nothing

    def execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        with span("forward"):
            states = HostStates(self.hidden_states(self._typed(batch)), self._pooling.norm)
        forwarded = time.perf_counter_ns()
        output = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        if batch.pooling is not None:  # else it measures memory and time
            with span("pool"):
                output = self._pooling.pooler.pool(batch, states)
        output.forward_ns = forwarded - start
        output.sample_ns = time.perf_counter_ns() - forwarded
        return output

    def _typed(self, batch: Batch) -> Batch:
        """Gives tokens of types that the model lacks its last one."""
        if batch.token_types is None:
            return batch
        most = self._pooling.num_token_types
        types = np.minimum(batch.token_types, most - 1).astype(np.int32) if most else None
        return replace(batch, token_types=types)
