"""State of one worker as watchers know it, and frames of what has changed since.

The state is compared as it is between two turns of the event loop, so that nothing in the planner
knows of watchers. The steps in between come as to a `StepObserver`.
"""

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from signalbox_contract.cache_groups import encode_group
from signalbox_contract.columns import pack_int32, pack_int64
from signalbox_contract.model import encode_rank
from signalbox_contract.step_result import StepResult
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.scheduler.v1 import watch_pb2 as pb
from signalbox_scheduler.insight.step_observer import UNOBSERVED, StepObserver
from signalbox_scheduler.kv.pool_watch import PoolChange, PoolWatch
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceStatus
from signalbox_scheduler.service.reports.insight_codec import nanoseconds
from signalbox_scheduler.workers.engine.scheduler import Scheduler

MAX_STEPS = 256
"""Steps between two frames that are told; of more the last are."""
_STATES = {
    SequenceStatus.WAITING: explain_pb2.REQUEST_STATE_WAITING,
    SequenceStatus.LOADING: explain_pb2.REQUEST_STATE_LOADING,
    SequenceStatus.RUNNING: explain_pb2.REQUEST_STATE_RUNNING,
    SequenceStatus.SWAPPED: explain_pb2.REQUEST_STATE_SWAPPED,
    SequenceStatus.FINISHED: explain_pb2.REQUEST_STATE_ENDED,
}


class _Progress(NamedTuple):
    """Columns of one sequence."""

    state: int = 0
    num_tokens: int = 0
    num_computed_tokens: int = 0


class _Told(NamedTuple):
    """State of one sequence as watchers know it."""

    progress: _Progress
    table: list[int]


_NOTHING = _Told(_Progress(), [])


class _AnsweredStep(NamedTuple):
    plan: StepPlan
    at: float
    seconds: float


class WorkerPicture(StepObserver):
    """One worker as watchers know it.

    Args:
        number: names the worker in frames.
    """

    def __init__(self, number: int, scheduler: Scheduler) -> None:
        self.number = number
        self._scheduler = scheduler
        self._told: dict[int, _Told] = {}
        self._sequences: dict[int, pb.WatchedSequence] = {}
        self._on_gpu = PoolWatch(scheduler.blocks.gpu)
        self._on_cpu = PoolWatch(scheduler.blocks.cpu)
        self._steps: deque[_AnsweredStep] = deque(maxlen=MAX_STEPS)
        self._num_steps = 0
        self._state: tuple[bool, WorkerRole] | None = None
        scheduler.observer = self

    def close(self) -> None:
        """Lets the scheduler and its pools observe nothing again."""
        self._scheduler.observer = UNOBSERVED
        self._on_gpu.close()
        self._on_cpu.close()

    def observe(self, plan: StepPlan, result: StepResult, now: float, *, seconds: float) -> None:
        self._steps.append(_AnsweredStep(plan, now, seconds))
        self._num_steps += 1

    def difference(self, role: WorkerRole) -> pb.WorkerFrame | None:
        """Returns what has changed since the last call, all at the first; None if nothing has."""
        frame = pb.WorkerFrame(steps=map(_step, self._steps))
        frame.num_omitted_steps = self._num_steps - len(self._steps)
        self._steps.clear()
        self._num_steps = 0
        state = (self._scheduler.is_accepting, role)
        if state != self._state:
            self._state = state
            frame.description.CopyFrom(self._description())
        self._compare_sequences(frame)
        _set_pool(frame.gpu, self._on_gpu.difference())
        _set_pool(frame.cpu, self._on_cpu.difference())
        if not frame.ListFields():
            return None
        frame.number = self.number
        return frame

    def full(self) -> pb.WorkerFrame:
        """Returns all that was told, as of the last difference."""
        frame = pb.WorkerFrame(
            number=self.number,
            description=self._description(),
            new_sequences=self._sequences.values(),
        )
        _set_sequences(frame, self._told)
        _set_tables(frame, {seq_id: (0, told.table) for seq_id, told in self._told.items()})
        _set_pool(frame.gpu, self._on_gpu.full())
        _set_pool(frame.cpu, self._on_cpu.full())
        return frame

    def _description(self) -> pb.WorkerDescription:
        assert self._state is not None, "nothing was told yet"
        is_accepting, role = self._state
        blocks = self._scheduler.blocks
        return pb.WorkerDescription(
            address=self._scheduler.worker_name,
            is_draining=not is_accepting,
            role=role,
            block_size=blocks.block_size,
            num_gpu_blocks=blocks.gpu.num_blocks,
            num_cpu_blocks=blocks.cpu.num_blocks,
            ranks=map(encode_rank, self._scheduler.config.ranks),
            store=store.kind if (store := self._scheduler.config.store) else "",
            groups=map(encode_group, blocks.groups),
        )

    def _compare_sequences(self, frame: pb.WorkerFrame) -> None:
        before, self._told = self._told, {}
        changed: dict[int, _Told] = {}
        tables: dict[int, tuple[int, list[int]]] = {}
        for seq in _sequences(self._scheduler):
            told = before.get(seq.seq_id)
            if told is None:
                self._sequences[seq.seq_id] = watched = _watched(seq)
                frame.new_sequences.append(watched)
                told = _NOTHING
            progress, table = _progress(seq), told.table
            if seq.block_table != table:
                num_kept, table = _num_common(table, seq.block_table), seq.block_table.copy()
                tables[seq.seq_id] = (num_kept, table[num_kept:])
            self._told[seq.seq_id] = now = _Told(progress, table)
            if progress != told.progress:
                changed[seq.seq_id] = now
        gone = before.keys() - self._told.keys()
        for seq_id in gone:
            del self._sequences[seq_id]
        frame.gone_seq_ids = pack_int64(sorted(gone))
        _set_sequences(frame, changed)
        _set_tables(frame, tables)


def _sequences(scheduler: Scheduler) -> Iterator[Sequence]:
    """Yields the sequences on a worker, those included that have ended and hold blocks."""
    for groups in (scheduler.running, scheduler.swapped, scheduler.loading):
        for group in groups:
            for seq in group.sequences:
                if seq.status is not SequenceStatus.FINISHED:
                    yield seq
    yield from scheduler.state.sequence_release.draining


def _progress(seq: Sequence) -> _Progress:
    num_tokens = seq.num_tokens
    # The decode batch has the counts of its sequences, which have computed all tokens but the last.
    is_decoding = seq.decode_index >= 0
    num_computed_tokens = num_tokens - 1 if is_decoding else seq.num_computed_tokens
    return _Progress(_STATES[seq.status], num_tokens, num_computed_tokens)


def _watched(seq: Sequence) -> pb.WatchedSequence:
    group = seq.group
    return pb.WatchedSequence(
        seq_id=seq.seq_id,
        request_number=group.number,
        num_prompt_tokens=group.num_prompt_tokens,
        max_tokens=group.max_tokens,
        arrived_at_ns=nanoseconds(group.times.arrival),
    )


def _num_common(before: list[int], after: list[int]) -> int:
    """Returns how many leading entries two tables have in common; most tables grow at their end."""
    if after[: len(before)] == before:
        return len(before)
    pairs = zip(before, after, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _set_sequences(frame: pb.WorkerFrame, told: dict[int, _Told]) -> None:
    rows = [one.progress for one in told.values()]
    columns = pb.WorkerFrame(
        seq_ids=pack_int64(list(told)),
        states=bytes([row.state for row in rows]),
        num_tokens=pack_int32([row.num_tokens for row in rows]),
        num_computed_tokens=pack_int32([row.num_computed_tokens for row in rows]),
    )
    frame.MergeFrom(columns)


def _set_tables(frame: pb.WorkerFrame, tables: dict[int, tuple[int, list[int]]]) -> None:
    """Sets the tables, each as the number of entries that it keeps and those that follow."""
    frame.table_seq_ids = pack_int64(list(tables))
    frame.table_num_kept = pack_int32([num_kept for num_kept, _ in tables.values()])
    frame.table_num_blocks = pack_int32([len(blocks) for _, blocks in tables.values()])
    frame.table_blocks = pack_int32([block for _, blocks in tables.values() for block in blocks])


def _set_pool(frame: pb.PoolFrame, change: PoolChange) -> None:
    """Sets what has changed; leaves the frame of a pool unset of which nothing has."""
    if change.cached:
        frame.cached = pack_int32(sorted(change.cached))
    if change.uncached:
        frame.uncached = pack_int32(sorted(change.uncached))
    for kind, blocks in change.held.items():
        frame.held.add(kind=f"HOLD_KIND_{kind.name}", blocks=pack_int32(blocks))


def _step(step: _AnsweredStep) -> pb.WatchedStep:
    plan = step.plan
    num_decodes = plan.num_decodes
    rows = zip(plan.seq_ids, plan.num_new_tokens, strict=True)
    chunks = [(seq_id, count) for seq_id, count in rows if count > 1 or not num_decodes]
    return pb.WatchedStep(
        step_id=plan.step_id,
        answered_at_ns=nanoseconds(step.at),
        duration_ns=nanoseconds(step.seconds),
        num_tokens=plan.total_tokens,
        num_decodes=num_decodes,
        prefill_seq_ids=pack_int64([seq_id for seq_id, _ in chunks]),
        prefill_num_tokens=pack_int32([count for _, count in chunks]),
        num_moved={name: count for name, count in plan.section_counts.items() if count},
        first_token_ns=pack_int64([nanoseconds(one) for one in _first_tokens(step)]),
    )


def _first_tokens(step: _AnsweredStep) -> Iterator[float]:
    """Yields the seconds from arrival to first token of the requests that have it of this step."""
    for group in dict.fromkeys(seq.group for seq in step.plan.seqs):
        if group.times.first_token == step.at:
            yield step.at - group.times.arrival
