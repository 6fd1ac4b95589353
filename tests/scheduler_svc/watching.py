"""A watcher that applies frames, and what it ought to know of a worker, read from its scheduler."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from signalbox_contract.columns import int32_list, int64_list
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.scheduler.v1 import watch_pb2 as pb
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from signalbox_scheduler.requests.sequence_group import Sequence
from signalbox_scheduler.service.reports.worker_frame_codec import WorkerPicture
from signalbox_scheduler.workers.engine.scheduler import Scheduler


@dataclass(slots=True)
class Shown:
    """What frames say of one worker."""

    sequences: dict[int, tuple[str, int, int, int]] = field(default_factory=dict)
    """State, request, number of tokens and of computed ones, by id."""
    tables: dict[int, list[int]] = field(default_factory=dict)
    cached: tuple[set[int], set[int]] = field(default_factory=lambda: (set(), set()))
    """Of the device's pool, and of the CPU pool."""
    held: tuple[dict[str, list[int]], dict[str, list[int]]] = field(
        default_factory=lambda: ({}, {})
    )

    def apply(self, frame: pb.WorkerFrame) -> None:
        requests = {one.seq_id: one.request_number for one in frame.new_sequences}
        for seq_id in int64_list(frame.gone_seq_ids):
            del self.sequences[seq_id]
            self.tables.pop(seq_id)
        rows = zip(
            int64_list(frame.seq_ids),
            map(explain_pb2.RequestState.Name, frame.states),
            int32_list(frame.num_tokens),
            int32_list(frame.num_computed_tokens),
            strict=True,
        )
        for seq_id, state, *counts in rows:
            request = requests[seq_id] if seq_id in requests else self.sequences[seq_id][1]
            self.sequences[seq_id] = (state, request, *counts)
            self.tables.setdefault(seq_id, [])
        blocks = iter(int32_list(frame.table_blocks))
        patches = zip(
            int64_list(frame.table_seq_ids),
            int32_list(frame.table_num_kept),
            int32_list(frame.table_num_blocks),
            strict=True,
        )
        for seq_id, num_kept, num_blocks in patches:
            self.tables[seq_id][num_kept:] = islice(blocks, num_blocks)
        assert not list(blocks), "blocks of no table"
        for pool, cached, owned in zip((frame.gpu, frame.cpu), self.cached, self.held, strict=True):
            cached |= set(int32_list(pool.cached))
            cached -= set(int32_list(pool.uncached))
            for one in pool.held:
                owned[pb.HoldKind.Name(one.kind)] = int32_list(one.blocks)
            for kind in [kind for kind, blocks in owned.items() if not blocks]:
                del owned[kind]


def expected_of(scheduler: Scheduler) -> Shown:
    """Returns what frames ought to have said by now."""
    sequences = {
        seq.seq_id: (
            f"REQUEST_STATE_{'ENDED' if seq.is_finished else seq.status.name}",
            seq.group.number,
            seq.num_tokens,
            scheduler.counters(seq).num_computed_tokens,
        )
        for seq in _sequences(scheduler)
    }
    tables = {seq.seq_id: seq.block_table for seq in _sequences(scheduler)}
    gpu, cpu = scheduler.blocks.gpu, scheduler.blocks.cpu
    cached = (set(gpu.cached_blocks), set(cpu.cached_blocks))
    return Shown(sequences, tables, cached, (_held(gpu), _held(cpu)))


def _sequences(scheduler: Scheduler) -> Iterator[Sequence]:
    for group in (*scheduler.running, *scheduler.swapped, *scheduler.loading):
        yield from group.unfinished
    yield from scheduler.state.sequence_release.draining


def _held(pool: BlockAllocator) -> dict[str, list[int]]:
    kinds = {hold.kind for hold in pool.holds if hold.blocks}
    return {
        f"HOLD_KIND_{kind.name}": sorted(
            {block for hold in pool.holds if hold.kind is kind for block in hold.blocks}
        )
        for kind in kinds
    }


class WorkerWatcher:
    """Follows one worker from now on."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._picture = WorkerPicture(1, scheduler)
        self._shown = Shown()

    def check(self) -> None:
        """Asserts that the differences so far, and a full picture, say what is the case.

        Each block is free, cached, held or a sequence's.
        """
        if (frame := self._picture.difference(WorkerRole.BOTH)) is not None:
            self._shown.apply(frame)
        assert self._picture.difference(WorkerRole.BOTH) is None, "told twice"
        fresh = Shown()
        fresh.apply(self._picture.full())
        assert self._shown == fresh == expected_of(self._scheduler)
        pool = self._scheduler.blocks.gpu
        swapped = "REQUEST_STATE_SWAPPED"
        tables = [one for i, one in fresh.tables.items() if fresh.sequences[i][0] != swapped]
        entries = (*tables, *fresh.held[0].values())
        used = {b for one in entries for b in self._scheduler.blocks.blocks_in(one)}
        assert not used & fresh.cached[0]
        assert pool.num_free == pool.num_blocks - len(used)
