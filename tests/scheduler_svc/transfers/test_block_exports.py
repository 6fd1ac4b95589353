"""A prefix comes from the worker that has most of it, where that pays; else it is computed."""

from typing import Any

import pytest

from signalbox_contract.sections.store_moves import Export, Fetch
from signalbox_scheduler.config import PeerIdentity
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.connector import KVConnector
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.block_exports import EXPORT_S
from signalbox_scheduler.transfers.fetch_cost import RETRY_S
from signalbox_scheduler.transfers.peer_reads import PAUSE_S
from signalbox_scheduler.transfers.peer_registry import PeerRegistry
from signalbox_scheduler.transfers.peers import TransferPeer
from signalbox_scheduler.transfers.pending_transfers import TransferKind
from signalbox_scheduler.transfers.prefix_loader import GRACE_S
from signalbox_scheduler.transfers.transfer_connector import POLL_S
from tests.scheduler_svc.fake_store import BLOCK_BYTES, Block, FakeStore
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    Loop,
    assert_all_free,
    content_of,
    is_moving,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
    retract,
    transfers,
)

PROMPT = list(range(11, 32))  # five blocks and a token
SLOW = CostModel(block_bytes=BLOCK_BYTES, prefill_tokens_per_s=1e9)
"""Of a worker that computes faster than anything comes to it."""


class Workers:
    """Workers with pools of their own, which share a queue; each runs only when a test says so."""

    def __init__(self, num: int = 2, **fields: Any) -> None:
        self.admission, self.peers = AdmissionQueue(), PeerRegistry()
        self.tickets: dict[bytes, tuple[FakeStore, int]] = {}
        self.content: dict[bytes, Block] = {}
        self.now = 0.0
        self.num_requests = 0
        self.loops = [self.join(number, **fields) for number in range(num)]

    def join(self, number: int, *, kv_format: str = "one", **fields: Any) -> Loop:
        identity = PeerIdentity(
            address=f"w{number}:1",
            certified_name=f"w{number}",
            epoch=7 + number,
            kv_format=kv_format,
        )
        fields = {"num_cpu_blocks": 20, **fields}
        scheduler = make_scheduler(
            admission=self.admission,
            identity=identity,
            peers=self.peers,
            **fields,
        )
        loop = make_loop(scheduler, kept={}, step_s=0.001)
        assert loop.worker.store is not None
        loop.worker.store.tickets = self.tickets
        return loop

    def peer(self, number: int) -> TransferPeer:
        return transfers(self.loops[number].scheduler).peer

    def store(self, number: int) -> FakeStore:
        store = self.loops[number].worker.store
        assert store is not None
        return store

    @property
    def num_ahead(self) -> int:
        """Blocks that the first worker has copied for what its reader asks for next."""
        scheduler = self.loops[0].scheduler
        num_exported = transfers(scheduler).transfers.num_blocks(TransferKind.EXPORT)
        return scheduler.blocks.cpu.num_holds().total() - num_exported

    def add(self, prompt: list[int] = PROMPT, *, tenant: str = "") -> SequenceGroup:
        self.num_requests += 1
        group = make_request(prompt, max_tokens=2, arrival=float(self.num_requests), tenant=tenant)
        self.content |= self.content_of(group)
        self.admission.add(group)
        return group

    def content_of(self, group: SequenceGroup) -> dict[bytes, Block]:
        groups = self.loops[0].scheduler.blocks.groups
        return content_of(group, block_size=4, groups=groups)

    def step(self, number: int, *, seconds: float = 0.0) -> None:
        """Lets a worker take a step, which takes so long."""
        loop = self.loops[number]
        loop.now = max(loop.now, self.now)
        loop.send()
        loop.scheduler.check()
        loop.now += seconds
        loop.answer()
        self.now = loop.now
        self.check()

    def run_on(self, number: int, prompt: list[int] = PROMPT) -> SequenceGroup:
        """Has one worker alone compute a request."""
        group = self.add(prompt)
        self.loops[number].now = self.now
        self.loops[number].run()
        self.now = self.loops[number].now
        assert outputs(group) == [expected(prompt, num_tokens=2)]
        return group

    def finish(self, *order: int) -> None:
        """Runs workers in turns until nothing is left to do."""
        for _ in range(200):
            for number in order:
                self.step(number)
        for loop in self.loops:
            assert_all_free(loop)
            assert not is_moving(loop.scheduler)

    def check(self) -> None:
        for loop in self.loops:
            loop.scheduler.check()
            loop.check_content(self.content)


def made(**fields: Any) -> Workers:
    """Returns workers the first of which has computed PROMPT."""
    workers = Workers(**fields)
    workers.run_on(0)
    return workers


def fetching(*, is_told: bool = True) -> tuple[Workers, SequenceGroup]:
    """Returns workers the second of which reads PROMPT of the first, and the request for it.

    Args:
        is_told: whether the first has been told to export it.
    """
    workers = made()
    workers.store(1).ends_at_once = False
    group = workers.add()
    workers.step(1)
    if is_told:
        workers.step(0)
    return workers, group


def assert_computed(
    workers: Workers, group: SequenceGroup, *order: int, most_cached: int = 0
) -> None:
    """The request is computed, right, and leaves nothing behind."""
    workers.finish(*order)
    assert group.num_cached_tokens <= most_cached
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]


def test_a_prefix_comes_from_another_worker() -> None:
    workers = made()
    group = workers.add()
    workers.finish(1, 0, 1)
    assert group.num_cached_tokens == 20
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]
    assert workers.store(1).num_borrowed == 5
    owner, reader = workers.peer(0), workers.peer(1)
    assert owner.exports.num_bytes == reader.reads.counts.num_bytes == 5 * BLOCK_BYTES
    counts = reader.reads.counts
    assert (counts.num_queries, counts.num_hits, counts.num_failures) == (20, 20, 0)
    (event,) = (one for one in group.timeline.events if one.kind is EventKind.FETCHED)
    assert (event.num_blocks, event.num_bytes) == (5, 5 * BLOCK_BYTES)
    assert (event.source, event.store) == ("w0:1", "")


def test_both_workers_are_told_of_one_ticket() -> None:
    workers = made()
    group = workers.add()
    reading = workers.loops[1].scheduler.schedule(workers.now)
    exporting = workers.loops[0].scheduler.schedule(workers.now)
    assert reading is not None
    assert exporting is not None
    assert reading.store_moves is not None
    assert exporting.store_moves is not None
    (fetch,), (export,) = reading.store_moves.fetches, exporting.store_moves.exports
    assert isinstance(fetch, Fetch)
    assert isinstance(export, Export)
    assert fetch.source is not None
    assert (fetch.source.address, fetch.source.server_name) == ("w0:1", "w0")
    assert fetch.source.ticket == export.ticket
    assert (export.reader, export.lasts_ns) == ("w1", EXPORT_S * 1e9)
    assert list(fetch.hashes) == list(export.hashes)
    assert exporting.block_moves.swap_out.dst.tolist() == list(export.cpu_blocks)
    assert group.sequences[0].status is SequenceStatus.LOADING


def test_tickets_differ_by_owner_reader_and_time() -> None:
    workers = Workers(3)
    peers = [workers.peer(number) for number in range(3)]
    pairs = [(0, 1), (1, 0), (0, 2), (0, 1)]
    tickets = {peers[a].exports.make_source(peers[b].endpoint.identity).ticket for a, b in pairs}
    assert len(tickets) == len(pairs)


def test_the_worker_that_has_most_exports() -> None:
    workers = Workers(3)
    workers.run_on(0, PROMPT[:13])
    workers.run_on(1)  # reads what the first has, and computes the rest
    group = workers.add()
    workers.finish(2, 1, 2)
    assert group.num_cached_tokens == 20
    assert workers.peer(1).exports.num_bytes == 5 * BLOCK_BYTES


def test_a_worker_without_room_leaves_a_request_to_the_one_that_has_its_prefix() -> None:
    workers = made(max_num_seqs=1)
    workers.run_on(1, [1, 2, 3])
    running = workers.add([4, 5, 6])
    workers.step(1)
    group = workers.add()
    workers.step(1)
    assert group.sequences[0].status is SequenceStatus.WAITING
    workers.step(0)
    assert group.num_cached_tokens == 20
    workers.finish(0, 1, 1)
    assert running.is_finished
    assert workers.peer(1).reads.counts.num_queries == 0


@pytest.mark.parametrize("tenant", ["other"])
def test_tenants_read_nothing_of_each_other(tenant: str) -> None:
    workers = made()
    group = workers.add(tenant=tenant)
    assert_computed(workers, group, 1, 0, 1)
    assert workers.peer(1).reads.counts.num_queries == 0


def test_workers_with_other_blocks_read_nothing() -> None:
    workers = made(num=1)
    workers.loops.append(workers.join(1, kv_format="other"))
    group = workers.add()
    assert_computed(workers, group, 1, 0, 1)
    assert not workers.peers.exports


def test_a_prefix_that_is_computed_faster_is_not_fetched() -> None:
    workers = made(cost=SLOW)
    group = workers.add()
    assert_computed(workers, group, 1, 0, 1)
    assert workers.peer(1).reads.counts.num_queries == 0


@pytest.mark.parametrize("num_ahead", [10, 100])
def test_the_steps_that_the_owner_has_in_flight_count(num_ahead: int) -> None:
    workers = made(cost=CostModel(block_bytes=BLOCK_BYTES, prefill_tokens_per_s=100))
    inflight = workers.loops[0].scheduler.in_flight
    plan = inflight.new_plan(workers.now, token_budget=num_ahead)
    plan.total_tokens = num_ahead
    inflight.append(plan)
    workers.add()
    workers.step(1)
    inflight.remove(plan)
    assert (workers.peer(1).reads.counts.num_queries > 0) is (num_ahead < 20)
    workers.finish(1, 0, 1)


def test_workers_that_are_slow_to_read_from_are_soon_left_alone_and_tried_again() -> None:
    workers = Workers(cost=CostModel(block_bytes=BLOCK_BYTES, prefill_tokens_per_s=1000.0))
    workers.store(1).duration_ns = 10**8  # to compute a prompt takes 0.02 s
    for first in range(40, 44):
        workers.run_on(0, [first, *PROMPT[1:]])
        workers.add([first, *PROMPT[1:]])
        workers.finish(1, 0, 1)
    assert workers.peer(1).reads.counts.num_hits == 20
    workers.store(1).duration_ns = 1000
    workers.now += RETRY_S
    for first in range(44, 48):
        workers.run_on(0, [first, *PROMPT[1:]])
        workers.add([first, *PROMPT[1:]])
        workers.finish(1, 0, 1)
    assert workers.peer(1).reads.counts.num_hits == 5 * 20


def test_blocks_that_the_owner_has_evicted_meanwhile_are_computed() -> None:
    workers = made()
    group = workers.add()
    workers.step(1)
    assert group.sequences[0].status is SequenceStatus.LOADING
    assert workers.loops[0].scheduler.reset_prefix_cache()
    assert_computed(workers, group, 0, 1, 1)


def test_the_leading_blocks_that_are_left_arrive() -> None:
    workers = made()
    group = workers.add()
    workers.step(1)
    blocks = workers.loops[0].scheduler.blocks
    gone = blocks.gpu.find(blocks.prefix_hashes(group.sequences[0], 2, 3)[0])
    assert gone is not None
    blocks.gpu.retract(gone)
    workers.finish(0, 1, 1)
    assert group.num_cached_tokens == 8


def test_a_first_fetch_may_take_as_long_as_its_tokens_take_to_compute() -> None:
    workers = made(cost=CostModel(block_bytes=BLOCK_BYTES, prefill_tokens_per_s=5.0))
    group = workers.add()
    workers.step(1)
    workers.now += 4.0  # the rate is not known, and to compute the blocks takes 4 s
    workers.step(1)
    assert group.sequences[0].status is SequenceStatus.LOADING
    workers.finish(0, 1, 1)
    assert group.num_cached_tokens == 20
    assert workers.peer(1).reads.counts.num_late == 0


def test_a_first_fetch_that_takes_longer_than_to_compute_its_tokens_is_late() -> None:
    workers = made(cost=CostModel(block_bytes=BLOCK_BYTES, prefill_tokens_per_s=5.0))
    group = workers.add()
    workers.step(1)
    workers.now += 4.0 + 2 * GRACE_S
    assert_computed(workers, group, 1, 1, 0)
    assert workers.peer(1).reads.counts.num_late == 1


def test_an_owner_that_does_not_answer_is_left_alone_for_a_while() -> None:
    workers = made()
    group = workers.add()
    workers.step(1)
    workers.now += 2 * GRACE_S
    assert_computed(workers, group, 1, 1, 0)
    assert workers.peer(1).reads.counts.num_late == 1
    workers.loops[1].scheduler.reset_prefix_cache()
    assert_computed(workers, workers.add(), 1, 0, 1)
    workers.loops[1].scheduler.reset_prefix_cache()
    workers.now += PAUSE_S
    again = workers.add()
    workers.finish(1, 0, 1)
    assert again.num_cached_tokens == 20


def test_a_fetch_that_fails_is_computed_and_its_export_ends() -> None:
    workers, group = fetching()
    (move_id,) = workers.store(1).pending
    workers.store(1).end(move_id, most=0, failed="UNAVAILABLE")
    assert_computed(workers, group, 1, 1, 0)
    assert workers.peer(1).reads.counts.num_failures == 1


@pytest.mark.parametrize("is_told", [False, True])
def test_an_abort_while_blocks_move_frees_them_on_both_workers(is_told: bool) -> None:
    workers, group = fetching(is_told=is_told)
    workers.loops[1].scheduler.abort(group)
    workers.finish(1, 0, 1)
    assert workers.store(1).num_borrowed <= 1, "what it had done when it was called off"


@pytest.mark.parametrize("is_told", [False, True])
def test_an_owner_that_is_lost_costs_a_recompute(is_told: bool) -> None:
    workers, group = fetching(is_told=is_told)
    owner = workers.loops.pop(0)
    workers.peers.leave(owner.scheduler.state, workers.now)
    owner.scheduler.evacuate()
    assert_computed(workers, group, 0, most_cached=4)  # a block had arrived


@pytest.mark.parametrize("is_told", [False, True])
def test_a_reader_that_is_lost_leaves_no_pin(is_told: bool) -> None:
    workers, group = fetching(is_told=is_told)
    reader = workers.loops.pop(1)
    workers.peers.leave(reader.scheduler.state, workers.now)
    (left,) = reader.scheduler.evacuate()
    assert left is group
    workers.admission.add(group)
    workers.finish(0)
    assert group.num_cached_tokens == 20


def compute_wrongly(workers: Workers, number: int) -> None:
    """Has a worker run a request with PROMPT, which goes wrong after its blocks could be found."""
    scheduler = workers.loops[number].scheduler
    group = workers.add()
    workers.step(number)
    retract(workers.loops[number], group.sequences[0])
    scheduler.abort(group)


def test_what_goes_wrong_on_its_owner_does_not_arrive() -> None:
    workers, group = fetching()
    compute_wrongly(workers, 0)
    assert_computed(workers, group, 1, 1, 0)
    assert workers.peer(1).reads.counts.num_hits == 0


def test_what_goes_wrong_once_it_has_been_read_does_not_arrive() -> None:
    workers, group = fetching()
    (move_id,) = workers.store(1).pending
    workers.store(1).end(move_id)  # which the reader's scheduler is not told yet
    workers.now += POLL_S
    workers.step(0)
    assert workers.peer(0).exports.num_bytes == 5 * BLOCK_BYTES
    compute_wrongly(workers, 0)
    assert_computed(workers, group, 1, 1, 0)
    assert workers.peer(1).reads.counts.num_hits == 0


def test_what_goes_wrong_after_it_has_arrived_is_found_nowhere() -> None:
    workers = made(num=3)
    first = workers.peer(0)
    for reader in (1, 2):
        workers.add()
        workers.finish(reader, reader - 1, reader)
        if reader == 1:  # so that the third worker reads of the second
            workers.peers.exports.remove(first.exports)
    workers.peers.exports.append(first.exports)
    assert workers.peer(2).reads.counts.num_hits == 20
    compute_wrongly(workers, 1)
    assert_computed(workers, workers.add(), 2, 1, 2)


def test_a_reset_voids_what_is_exported_and_what_arrives() -> None:
    workers, group = fetching()
    assert workers.loops[0].scheduler.reset_prefix_cache()
    workers.store(1).ends_at_once = True
    assert_computed(workers, group, 0, 1, 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_cpu_blocks": 12},  # of which a quarter may be exported
        {"cost": CostModel(block_bytes=BLOCK_BYTES, copy_bytes_per_s=200 * 3 * BLOCK_BYTES)},
    ],
    ids=["pool", "copies"],
)
def test_a_prefix_arrives_in_parts_where_few_blocks_may_be_exported_at_a_time(
    fields: dict[str, Any],
) -> None:
    workers = made(**fields)
    group, most = workers.add(), 0
    while workers.peer(1).reads.counts.num_hits < 20:
        for number in (1, 0):
            workers.step(number)
            moves = transfers(workers.loops[0].scheduler).transfers
            most = max(most, moves.num_blocks(TransferKind.EXPORT))
    assert most == 3
    workers.finish(1, 0, 1)
    assert group.num_cached_tokens == 20
    assert workers.peer(0).exports.num_bytes == 5 * BLOCK_BYTES
    fetched = [one for one in group.timeline.events if one.kind is EventKind.FETCHED]
    assert [one.num_blocks for one in fetched] == [3, 2]


def reading_in_parts(num: int = 2) -> tuple[Workers, SequenceGroup]:
    """Returns workers the second of which reads the first part of PROMPT, and the request for it.

    A plan of the first copies one block at most, and has copied the others ahead meanwhile.
    """
    cost = CostModel(
        block_bytes=BLOCK_BYTES, copy_bytes_per_s=200 * BLOCK_BYTES, prefill_tokens_per_s=100
    )
    workers = made(num=num, cost=cost)
    workers.store(1).ends_at_once = False
    group = workers.add()
    workers.step(1)
    for num_ahead in range(5):
        workers.step(0)
        assert workers.num_ahead == num_ahead
    workers.step(0)
    assert workers.num_ahead == 4
    return workers, group


def test_a_worker_copies_the_next_part_while_the_first_is_read() -> None:
    workers, group = reading_in_parts()
    (fetch,) = workers.store(1).pending
    workers.store(1).end(fetch)
    workers.store(1).ends_at_once = True
    workers.finish(1, 0, 1)
    assert group.num_cached_tokens == 20
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]
    fetched = [one for one in group.timeline.events if one.kind is EventKind.FETCHED]
    assert [one.num_blocks for one in fetched] == [1, 4]


def test_copies_that_were_made_ahead_are_free_if_the_request_ends() -> None:
    workers, group = reading_in_parts()
    workers.loops[1].scheduler.abort(group)
    workers.step(1)
    assert not workers.num_ahead
    workers.finish(0, 1)


def test_copies_that_were_made_ahead_make_way_for_another_reader() -> None:
    workers, group = reading_in_parts(num=3)
    assert workers.peer(0).exports.num_exportable == 4  # as far as a group that is migrated sees
    workers.store(2).ends_at_once = False
    other = workers.add()
    workers.step(2)
    workers.step(0)
    assert [len(export.hashes) for export in workers.store(0).pending.values()] == [1, 4]
    for store in (workers.store(1), workers.store(2)):
        store.ends_at_once = True
        store.end(*store.pending)
    workers.finish(2, 1, 0)
    assert outputs(group) == outputs(other) == [expected(PROMPT, num_tokens=2)]


@pytest.mark.parametrize("ends_export", [False, True])
def test_nothing_is_copied_ahead_for_a_fetch_that_is_called_off(ends_export: bool) -> None:
    workers, group = reading_in_parts()
    reader = workers.peer(1)
    (pair,) = reader.reads._fetches.values()
    pair.ahead.release()
    if ends_export:
        reader.reads.cancel(pair.fetch, workers.now)
    else:
        pair.call_off(workers.now)
    workers.loops[0].send()
    assert not workers.num_ahead
    workers.loops[0].answer()
    assert_computed(workers, group, 1, 0, most_cached=20)


@pytest.mark.parametrize("is_all", [False, True], ids=["clear", "reset"])
def test_copies_that_were_made_ahead_are_found_by_nothing_after_a_clear(is_all: bool) -> None:
    workers, group = reading_in_parts()
    owner = workers.loops[0].scheduler
    if is_all:
        assert owner.reset_prefix_cache()
    else:
        owner.clear_prefix_cache(None, lambda fault: None)
    assert not owner.blocks.cpu.hashes
    workers.step(0)  # which ends the export, and so the fetch
    workers.store(1).end(*workers.store(1).pending)
    assert_computed(workers, group, 1, 0)


@pytest.mark.parametrize("num_cpu_blocks", [1, 3])
def test_a_pool_of_which_no_block_may_be_exported_takes_part_in_nothing(
    num_cpu_blocks: int,
) -> None:
    identity = PeerIdentity(address="w:1", epoch=1, kv_format="one")
    peers = PeerRegistry()
    make_scheduler(identity=identity, peers=peers, num_cpu_blocks=4)
    make_scheduler(identity=identity, peers=peers, num_cpu_blocks=num_cpu_blocks)
    assert not peers.exports
    make_scheduler(identity=identity, peers=peers, num_cpu_blocks=4)
    assert len(peers.exports) == 2


def test_a_worker_alone_moves_nothing_until_another_joins() -> None:
    workers = made(num=1)
    (alone,) = workers.loops
    assert type(alone.scheduler.state.connector) is KVConnector
    assert not alone.scheduler.blocks.records_events
    workers.loops.append(workers.join(1))
    group = workers.add()
    workers.finish(1, 0, 1)
    assert group.num_cached_tokens == 20
    connector, reader = alone.scheduler.state.connector, workers.loops.pop()
    workers.peers.leave(reader.scheduler.state, workers.now)
    workers.run_on(0, PROMPT[::-1])
    assert alone.scheduler.state.connector is connector, "what it exported may be stored somewhere"
    assert_all_free(alone)


def test_a_prefix_of_which_a_part_has_arrived_is_used_if_its_owner_is_lost() -> None:
    workers = made(num_cpu_blocks=12)
    group = workers.add()
    workers.step(1)
    while workers.peer(1).reads.counts.num_hits < 12:
        workers.step(0)
        workers.step(1)
    assert group.sequences[0].status is SequenceStatus.LOADING
    owner = workers.loops.pop(0)
    workers.peers.leave(owner.scheduler.state, workers.now)
    owner.scheduler.evacuate()
    assert_computed(workers, group, 0, most_cached=12)
    assert group.num_cached_tokens == 12


def test_a_fetch_evicts_nothing_of_the_prefix_that_it_goes_on_with() -> None:
    workers = made(num=1)
    workers.loops.append(workers.join(1, num_cpu_blocks=6))
    reader, group = workers.loops[1].scheduler.blocks, workers.add()
    other = make_request(PROMPT[::-1], max_tokens=2)
    workers.content |= content_of(other, block_size=4)
    begins = reader.prefix_hashes(group.sequences[0], 0, 2)
    for block_hash in begins + reader.prefix_hashes(other.sequences[0], 0, 4):
        block = reader.cpu.allocate()
        workers.store(1).cpu[block] = dict(workers.content[block_hash])
        reader.cpu.cache_block(block, block_hash)
        reader.cpu.free(block)
    workers.finish(1, 0, 1)
    assert group.num_cached_tokens == 20
    assert workers.peer(1).reads.counts.num_hits == 12


def test_blocks_of_a_worker_that_is_avoided_are_not_read() -> None:
    workers = made()
    workers.peers.avoid("w0:1")
    group = workers.add()
    assert_computed(workers, group, 1, 0, 1)
    assert not workers.store(1).num_borrowed
    assert workers.peer(0).reads.has_peers, "it reads of others"
