"""Prefixes come from a worker's store, or are computed: exact output, and no block is lost."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from signalbox_contract.model import StoreCapacity
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.fetch_cost import RETRY_S
from signalbox_scheduler.transfers.peer_reads import PAUSE_S
from signalbox_scheduler.transfers.peer_registry import PeerRegistry
from signalbox_scheduler.transfers.prefix_loader import GRACE_S, MAX_LOADING
from signalbox_scheduler.transfers.transfer_connector import TransferConnector
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
STORE = StoreCapacity(kind="memory")


class Server:
    """A worker with a store, which may have been written by one before it."""

    def __init__(
        self,
        kept: dict[bytes, Block] | None = None,
        *,
        peers: PeerRegistry | None = None,
        **fields: object,
    ) -> None:
        self.peers = peers or PeerRegistry()
        fields = {"num_cpu_blocks": 16, "store": STORE, "peers": self.peers, **fields}
        scheduler = make_scheduler(**fields)  # type: ignore[arg-type]
        self.kept: dict[bytes, Block] = {} if kept is None else kept
        self.loop: Loop = make_loop(scheduler, kept=self.kept, step_s=0.001)
        self.scheduler = scheduler
        self.content: dict[bytes, Block] = {}
        self.num_requests = 0

    @property
    def store(self) -> FakeStore:
        assert self.loop.worker.store is not None
        return self.loop.worker.store

    def add(
        self, prompt: list[int] = PROMPT, *, max_tokens: int = 2, **fields: Any
    ) -> SequenceGroup:
        self.num_requests += 1
        arrival = float(self.num_requests)
        group = make_request(prompt, max_tokens=max_tokens, arrival=arrival, **fields)
        groups = self.scheduler.blocks.groups
        self.content |= content_of(group, block_size=4, groups=groups)
        self.scheduler.admission.add(group)
        return group

    def step(self) -> None:
        self.loop.send()
        self.scheduler.check()
        self.loop.answer()
        self.check()

    def check(self) -> None:
        self.scheduler.check()
        self.loop.check_content(self.content)
        for block_hash, block in self.kept.items():
            assert self.content.get(block_hash, block) == block, "what is stored is wrong"

    def run(self, prompt: list[int] = PROMPT, *, tenant: str = "") -> SequenceGroup:
        group = self.add(prompt, tenant=tenant)
        self.finish()
        assert outputs(group) == [expected(prompt, num_tokens=2)]
        return group

    def finish(self) -> None:
        self.loop.run()
        self.check()
        assert_all_free(self.loop)
        assert not is_moving(self.scheduler)


def filled(**fields: Any) -> Server:
    """Returns a new worker with the store of one that has served PROMPT twice."""
    first = Server()
    first.run()
    first.run()
    return Server(first.kept, **fields)


def kinds(group: SequenceGroup) -> list[EventKind]:
    return [event.kind for event in group.timeline.events]


def test_a_block_is_stored_at_its_second_use() -> None:
    server = Server()
    server.run()
    assert not server.kept
    second = server.run()
    assert len(server.kept) == 5
    server.run()
    assert server.store.num_stored == 5, "what is stored is not stored again"
    assert EventKind.STORED in kinds(second)


def test_blocks_are_stored_whatever_rate_of_copies_the_worker_measured() -> None:
    cost = CostModel(block_bytes=BLOCK_BYTES, copy_bytes_per_s=1.0, prefill_tokens_per_s=1e3)
    server = Server(cost=cost)
    server.run()
    server.run()
    assert len(server.kept) == 5


def test_conversations_that_the_pools_have_no_room_for_are_stored_at_the_second_turn() -> None:
    server = Server(num_gpu_blocks=9, num_cpu_blocks=12)
    conversations = [[number] * 25 for number in range(8)]
    for turn in range(3):
        for prompt in conversations:
            group = server.run(prompt)
            assert group.num_cached_tokens == (24 if turn == 2 else 0)


def test_a_later_turn_of_a_conversation_is_stored_with_its_answer() -> None:
    server = Server()
    history = PROMPT.copy()
    for num_kept in (0, 9):
        group = server.add(history, max_tokens=8)
        server.finish()
        assert len(server.kept) == num_kept
        history += [*group.sequences[0].output_token_ids, 7, 8, 9]
    assert len(history) == 43
    again = Server(server.kept, num_cpu_blocks=32)
    group = again.add(history)
    again.finish()
    assert group.num_cached_tokens == 36  # all of which was computed before


def test_prompts_that_begin_alike_are_no_conversation() -> None:
    server = Server()
    for last in range(3):
        server.add([*PROMPT[:12], *[40 + last] * 9], max_tokens=8)
        server.finish()
    assert len(server.kept) == 3, "the blocks that they share"


def test_branches_of_one_request_are_one_use() -> None:
    server = Server(num_gpu_blocks=32)
    request = make_request(PROMPT, n=3, max_tokens=6)
    server.content |= content_of(request, block_size=4)
    server.scheduler.admission.add(request)
    server.finish()
    assert not server.kept


def test_a_prefix_comes_from_the_store_after_a_restart() -> None:
    server = filled()
    group = server.run()
    assert group.num_cached_tokens == 20
    assert server.store.num_fetched == 5
    assert server.loop.worker.num_swapped_in == 5
    (event,) = (one for one in group.timeline.events if one.kind is EventKind.FETCHED)
    assert (event.num_blocks, event.num_bytes, event.detail) == (5, 160, "")
    assert (event.source, event.store) == ("", STORE.kind)
    counts = transfers(server.scheduler).loading.counts
    assert (counts.num_queries, counts.num_hits, counts.num_failures) == (20, 20, 0)


def test_what_is_in_a_pool_is_not_fetched() -> None:
    server = filled()
    server.run(PROMPT[:9])
    group = server.run()
    assert group.num_cached_tokens == 20
    assert server.store.num_fetched == 5


def test_a_request_that_waits_loads_while_there_is_no_room_for_it() -> None:
    server = filled(max_num_seqs=1, num_gpu_blocks=16)
    running = server.add([1, 2, 3], max_tokens=12)
    server.step()
    waiting = server.add()
    for _ in range(4):
        server.step()
    assert server.store.num_fetched == 5
    assert waiting.sequences[0].status is SequenceStatus.WAITING
    assert not running.is_finished
    server.finish()
    assert waiting.num_cached_tokens == 20


@pytest.mark.parametrize("tenant", ["", "other"])
def test_a_tenant_finds_what_its_own_requests_have_stored(tenant: str) -> None:
    server = filled()
    assert server.run(tenant=tenant).num_cached_tokens == (0 if tenant else 20)


def test_a_store_that_pays_less_than_computing_is_not_asked() -> None:
    cost = CostModel(block_bytes=32, load_bytes_per_s=1000.0, prefill_tokens_per_s=1000.0)
    server = filled(cost=cost)
    server.run()
    assert server.store.num_fetched == 0
    assert transfers(server.scheduler).loading.counts.num_queries == 0


PROMPTS = [[first, *PROMPT[1:]] for first in range(40, 50)]


def with_many_prompts() -> Server:
    """Returns a new worker with a store of many prompts, and a cost model that it learns."""
    first = Server()
    for prompt in PROMPTS:
        first.run(prompt)
        first.run(prompt)
    cost = CostModel(block_bytes=BLOCK_BYTES, load_bytes_per_s=1e9, prefill_tokens_per_s=1000.0)
    return Server(first.kept, cost=cost)


def test_a_store_that_is_slow_within_its_time_is_soon_left_alone_and_tried_again() -> None:
    server = with_many_prompts()
    server.store.duration_ns = 10**8  # to compute a prompt takes 0.02 s
    for prompt in PROMPTS[:6]:
        server.run(prompt)
    num_slow = server.store.num_fetched // 5
    assert num_slow <= 3
    server.store.duration_ns = 1000
    server.run(PROMPTS[6])
    assert server.store.num_fetched == 5 * num_slow
    server.loop.now += RETRY_S
    for prompt in PROMPTS[7:]:
        assert server.run(prompt).num_cached_tokens == 20


def test_a_fetch_that_is_given_up_lowers_the_rate_and_pauses_lookups() -> None:
    server = with_many_prompts()
    hold(server)
    server.store.duration_ns = 10**9
    server.store.heeds_cancels = False
    server.add(PROMPTS[0])
    fetch = until_fetching(server)
    server.loop.now += 2 * GRACE_S
    server.step()
    server.store.end(fetch, most=0, failed="cancelled")
    server.step()
    server.step()
    assert server.scheduler.cost.load_bytes_per_s < 1e6
    server.store.ends_at_once = True
    assert server.run(PROMPTS[1]).num_cached_tokens == 0
    loading = transfers(server.scheduler).loading
    assert loading.counts.num_queries == loading.counts.num_late * 20 == 20
    server.loop.now += PAUSE_S
    assert server.run(PROMPTS[2]).num_cached_tokens == 20


def hold(server: Server) -> None:
    """Lets moves of the store end when the test does it."""
    server.store.ends_at_once = False


def until_pending(server: Server) -> int:
    """Steps until a move is under way, and returns its number."""
    for _ in range(10):
        server.step()
        if server.store.pending:
            return next(iter(server.store.pending))
    raise AssertionError("no move has begun")


def until_fetching(server: Server) -> int:
    server.store.end(until_pending(server))
    return until_pending(server)


def test_a_lookup_that_comes_late_is_given_up() -> None:
    server = filled()
    hold(server)
    group = server.add()
    until_pending(server)
    assert group.sequences[0].status is SequenceStatus.LOADING
    assert server.scheduler.has_unfinished
    server.loop.now += GRACE_S
    server.step()
    assert group.sequences[0].status is not SequenceStatus.LOADING
    assert not server.store.pending, "it is called off"
    server.store.ends_at_once = True
    server.finish()
    assert (server.store.num_fetched, group.num_cached_tokens) == (0, 0)


def test_a_fetch_that_comes_late_keeps_its_blocks_until_it_has_ended() -> None:
    server = filled()
    hold(server)
    server.store.heeds_cancels = False
    group = server.add()
    fetch = until_fetching(server)
    server.loop.now += 10.0
    server.step()
    assert group.sequences[0].status is SequenceStatus.LOADING, "it waits for what has arrived"
    server.loop.now += GRACE_S
    for _ in range(5):
        server.step()
    assert group.is_finished
    assert group.num_cached_tokens == 0
    pool = server.scheduler.blocks.cpu
    assert pool.num_free == pool.num_blocks - 5
    assert server.scheduler.state.connector.overdue_at == pytest.approx(
        server.loop.now + 10.0, abs=1
    )
    server.store.end(fetch)
    server.finish()
    assert server.scheduler.state.connector.overdue_at == math.inf


@pytest.mark.parametrize("most", [0, 3])
def test_what_a_fetch_brought_before_it_came_late_is_used_by_all_that_wait(most: int) -> None:
    server = filled()
    hold(server)
    server.store.heeds_cancels = False
    groups = [server.add()]
    fetch = until_fetching(server)
    groups.append(server.add())
    server.step()
    server.loop.now += 10.0
    server.step()
    server.store.end(fetch, most=most, failed="cancelled")
    server.store.ends_at_once = True
    server.finish()
    assert [group.num_cached_tokens >= 4 * most for group in groups] == [True, True]
    assert groups[0].num_cached_tokens == 4 * most
    for group in groups:
        assert outputs(group) == [expected(PROMPT, num_tokens=2)]
    assert transfers(server.scheduler).loading.counts.num_late == 1
    assert transfers(server.scheduler).loading.counts.num_failures == 0


@pytest.mark.parametrize("most", [0, 3])
def test_what_a_fetch_brought_before_it_failed_is_used(most: int) -> None:
    server = filled()
    hold(server)
    group = server.add()
    server.store.end(until_fetching(server), most=most, failed="input/output error")
    server.store.ends_at_once = True
    server.finish()
    assert group.num_cached_tokens == 4 * most
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]
    assert transfers(server.scheduler).loading.counts.num_failures == 1


@pytest.mark.parametrize("step", [until_pending, until_fetching])
def test_an_abort_calls_off_what_the_request_waits_for(step) -> None:  # type: ignore[no-untyped-def]
    server = filled()
    hold(server)
    group = server.add()
    step(server)
    server.scheduler.abort(group)
    server.check()
    server.step()
    assert not server.store.pending
    server.finish()


def test_the_part_of_a_prefix_that_is_on_the_cpu_is_pinned_while_the_rest_loads() -> None:
    server = filled(num_gpu_blocks=6)
    server.run(PROMPT[:9])
    server.run(list(range(50, 70)))  # takes the whole GPU pool
    hold(server)
    group = server.add()
    until_pending(server)
    pool = server.scheduler.blocks.cpu
    assert pool.num_free == pool.num_blocks - 2
    server.scheduler.abort(group)
    server.step()
    assert pool.num_free == pool.num_blocks
    server.finish()


def test_a_request_that_ends_in_the_queue_gives_up_what_has_arrived() -> None:
    server = filled(max_num_seqs=1, num_gpu_blocks=16)
    server.add([1, 2, 3], max_tokens=12)
    server.step()
    waiting = server.add()
    for _ in range(4):
        server.step()
    pool = server.scheduler.blocks.cpu
    assert pool.num_free == pool.num_blocks - 5
    server.scheduler.admission.remove(waiting)
    server.check()
    assert pool.num_free == pool.num_blocks
    server.finish()


def test_a_worker_that_drains_gives_loading_requests_back() -> None:
    server = filled()
    hold(server)
    group = server.add()
    until_fetching(server)
    server.scheduler.drain()
    assert group in server.scheduler.admission
    server.step()
    assert not server.store.pending
    assert group in server.scheduler.admission
    server.scheduler.check()


def test_a_lost_worker_gives_loading_and_loaded_requests_back() -> None:
    admission = AdmissionQueue()
    server = filled(max_num_seqs=1, num_gpu_blocks=16, admission=admission)
    server.add([1, 2, 3], max_tokens=12)
    server.step()
    loaded = server.add()
    for _ in range(4):
        server.step()
    assert admission.prefixes
    hold(server)
    other = server.add([*PROMPT[:8], *range(50, 64)])
    until_pending(server)
    groups = server.scheduler.evacuate()
    assert other in groups
    assert loaded in admission
    assert not admission.prefixes
    for group in groups:
        admission.add(group)
    admission.check()
    second = Server(server.kept, admission=admission)
    second.content = server.content
    second.finish()
    assert outputs(other) == [expected(other.request.prompt_token_ids, num_tokens=2)]
    assert loaded.num_cached_tokens == 20, "another worker asks its store, too"


def test_requests_of_one_prefix_wait_for_one_fetch() -> None:
    server = filled(num_gpu_blocks=40)
    groups = [server.add([*PROMPT, token]) for token in range(3)]
    server.finish()
    assert server.store.num_fetched == 5
    assert [group.num_cached_tokens for group in groups] == [20, 20, 20]


def test_few_requests_load_at_once() -> None:
    server = Server(max_num_seqs=64)
    hold(server)
    prompts = [[number] * 9 for number in range(2 * MAX_LOADING)]
    groups = [server.add(prompt) for prompt in prompts]
    server.step()
    assert len(server.scheduler.loading) == MAX_LOADING
    server.store.ends_at_once = True
    server.finish()
    assert all(group.is_finished for group in groups)


def test_a_reset_reaches_the_store_and_what_is_under_way() -> None:
    server = Server()
    server.run()
    hold(server)
    group = server.add()
    for _ in range(6):
        server.step()
    assert group.is_finished
    assert server.store.pending, "blocks are being stored"
    assert server.scheduler.reset_prefix_cache()
    server.store.ends_at_once = True
    server.finish()
    assert not server.kept
    pool = server.scheduler.blocks.cpu
    assert not pool.num_cached
    assert server.run().num_cached_tokens == 0


def test_what_is_fetched_before_a_reset_is_not_found_after_it() -> None:
    server = filled()
    hold(server)
    group = server.add()
    until_fetching(server)
    server.scheduler.abort(group)
    assert server.scheduler.reset_prefix_cache()
    server.store.ends_at_once = True
    server.finish()
    assert not server.scheduler.blocks.cpu.num_cached
    assert not server.kept


def test_blocks_of_a_sequence_that_went_wrong_are_not_fetched() -> None:
    server = filled()
    group = server.add(max_tokens=8)
    for _ in range(4):
        server.step()
    assert server.store.num_fetched == 5
    retract(server.loop, group.sequences[0])
    server.finish()
    assert server.run().num_cached_tokens == 0
    assert server.store.num_fetched == 5


def test_blocks_that_went_wrong_are_fetched_by_no_worker_of_the_cluster() -> None:
    """Whether it has the same store, or takes the place of the one before it."""
    peers = PeerRegistry()
    first = filled(peers=peers)
    group = first.add(max_tokens=8)
    for _ in range(4):
        first.step()
    retract(first.loop, group.sequences[0])
    first.finish()
    second = Server(first.kept, peers=peers)
    assert second.run().num_cached_tokens == 0
    assert second.store.num_fetched == 0


@pytest.mark.parametrize("until", [until_pending, until_fetching])
def test_what_goes_wrong_while_it_is_looked_up_or_fetched_does_not_arrive(
    until: Callable[[Server], int],
) -> None:
    server = filled()
    hold(server)
    group = server.add()
    move_id = until(server)
    for block_hash in server.scheduler.blocks.prefix_hashes(group.sequences[0], 0, 5):
        server.peers.distrust(block_hash, transfers(server.scheduler).peer.exports, server.loop.now)
    server.store.end(move_id)
    server.store.ends_at_once = True
    server.finish()
    assert group.num_cached_tokens == 0
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]


def test_a_failed_write_pauses_writing() -> None:
    server = Server()
    server.run()
    hold(server)
    server.add()
    move = until_pending(server)
    server.store.end(move, most=2, failed="no space left on device")
    server.store.ends_at_once = True
    server.finish()
    write_behind = transfers(server.scheduler).write_behind
    assert (write_behind.num_blocks, write_behind.num_failures) == (2, 1)
    server.run()
    assert server.store.num_stored == 2
    server.loop.now += 60.0
    server.run()
    server.run()
    assert server.store.num_stored == 5


def test_a_block_that_the_store_does_not_keep_is_offered_again_later() -> None:
    server = Server()
    server.run()
    hold(server)
    server.add()
    server.store.end(until_pending(server), most=0)
    server.store.ends_at_once = True
    server.finish()
    server.run()
    assert not server.kept, "the store may not be ready"
    server.loop.now += 2.0
    server.run()
    assert len(server.kept) == 5
    assert transfers(server.scheduler).write_behind.num_failures == 0


def test_no_more_is_written_than_a_second_allows() -> None:
    store = StoreCapacity(kind="memory", max_write_bytes_per_s=64)
    server = Server(store=store, cost=CostModel(block_bytes=32))
    server.run()
    server.run()
    assert server.store.num_stored == 2
    server.loop.now += 10.0
    server.run()
    assert server.store.num_stored == 4
    server.loop.now += 10.0
    server.run()
    assert server.store.num_stored == 5


def test_a_worker_whose_pool_caches_nothing_uses_no_store() -> None:
    for fields in ({"num_cpu_blocks": 0}, {"cpu_prefix_cache": False}, {"prefix_caching": False}):
        scheduler = make_scheduler(store=STORE, **{"num_cpu_blocks": 4, **fields})  # type: ignore[arg-type]
        assert not isinstance(scheduler.state.connector, TransferConnector)


def test_a_clear_reaches_requests_that_run_load_and_have_loaded() -> None:
    server = filled(max_num_seqs=1, num_gpu_blocks=16)
    running = server.add([1, 2, 3], max_tokens=12)
    server.step()
    loaded = server.add()
    for _ in range(4):
        server.step()
    assert server.scheduler.admission.prefixes
    hold(server)
    loading = server.add([*PROMPT[:8], *range(50, 64)])
    until_pending(server)
    faults: list[str] = []
    server.scheduler.clear_prefix_cache(None, faults.append)
    server.scheduler.check()
    assert not faults, "the worker has not said so yet"
    for pool in (server.scheduler.blocks.gpu, server.scheduler.blocks.cpu):
        assert not pool.hashes
    server.store.ends_at_once = True
    server.finish()
    assert faults == [""]
    assert running.num_cached_tokens == loaded.num_cached_tokens == 0
    assert loading.num_cached_tokens == 8, "what has been computed since is found"
    assert_all_free(server.loop)


def test_nothing_is_looked_up_while_the_store_is_cleared() -> None:
    server = filled()
    hold(server)
    server.scheduler.clear_prefix_cache(None, lambda _: None)
    group = server.add()
    before = transfers(server.scheduler).loading.counts.num_queries
    server.step()
    assert transfers(server.scheduler).loading.counts.num_queries == before
    server.store.ends_at_once = True
    server.finish()
    assert group.num_cached_tokens == 0
    assert_all_free(server.loop)


def test_a_clear_whose_worker_is_lost_says_so() -> None:
    server = filled()
    faults: list[str] = []
    server.scheduler.clear_prefix_cache("team-a", faults.append)
    server.scheduler.evacuate()
    assert faults == ["the worker has left"]


def test_a_clear_of_a_tenant_names_it() -> None:
    server = filled()
    server.scheduler.clear_prefix_cache("team-a", lambda _: None)
    server.loop.send()
    assert server.scheduler.in_flight[-1].store_moves.clears[0].tenant == "team-a"


def test_a_store_that_is_avoided_is_not_read_until_all_of_it_is_cleared() -> None:
    server = filled()
    server.scheduler.state.connector.avoid_store()
    for tenant in ("team-a", None):
        assert server.run().num_cached_tokens == 0
        assert not server.store.num_fetched
        server.scheduler.clear_prefix_cache(tenant, lambda fault: None)
        server.finish()
    server.run()
    server.run()  # which stores it again
    server.scheduler.forget_prefixes()
    assert server.run().num_cached_tokens == 20
    assert server.store.num_fetched == 5


@pytest.mark.parametrize("begin", [until_pending, until_fetching])
def test_what_is_on_its_way_from_a_store_that_is_avoided_is_not_used(
    begin: Callable[[Server], int],
) -> None:
    server = filled()
    hold(server)
    group = server.add()
    move = begin(server)
    server.scheduler.state.connector.avoid_store()
    server.store.ends_at_once = True
    server.store.end(move)
    server.finish()
    assert group.num_cached_tokens == 0
    assert outputs(group) == [expected(PROMPT, num_tokens=2)]
