"""A running group goes to another worker with its blocks; what fails leaves it where it is."""

from collections.abc import Callable
from typing import Any

import pytest

from signalbox_contract.model import StoreCapacity
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.structured_output.grammar_cost import GROWTH_BYTES
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.block_exports import BlockExports
from signalbox_scheduler.transfers.migration import RETRY_S
from signalbox_scheduler.transfers.migration_rounds import GRACE_S
from signalbox_scheduler.transfers.pending_transfers import TransferKind
from signalbox_scheduler.transfers.worker_migrations import WorkerMigrations
from signalbox_scheduler.workers.engine.scheduler import LONG_STEP_S
from tests.scheduler_svc.beams import assert_found
from tests.scheduler_svc.fake_store import BLOCK_BYTES
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    Loop,
    assert_all_free,
    content_of,
    is_moving,
    make_request,
    outputs,
    retract,
    transfers,
)
from tests.scheduler_svc.transfers.test_block_exports import PROMPT, Workers

NUM_TOKENS = 24
NUM_TURNS = 12
"""Turns after which any migration of these tests has ended."""


class Pair(Workers):
    """A worker that runs groups, and one that may take them over."""

    def __init__(self, num: int = 2, **fields: Any) -> None:
        self.groups: list[SequenceGroup] = []
        self.num_computed = 0
        """Tokens that the workers were asked to compute."""
        self.knows_all = True
        super().__init__(num, **fields)

    def of(self, number: int) -> WorkerMigrations:
        return transfers(self.loops[number].scheduler).migrations

    def start(
        self, prompt: list[int] = PROMPT, *, num_steps: int = 3, **request: Any
    ) -> SequenceGroup:
        """Has the first worker run a request."""
        fields = {"max_tokens": NUM_TOKENS, "arrival": float(len(self.groups)), **request}
        group = make_request(prompt, **fields)
        if group.request.beam_search is None:
            self.content |= self.content_of(group)
        else:
            self.knows_all = False
        self.groups.append(group)
        self.admission.add(group)
        for _ in range(num_steps):
            self.step(0)
            self.loops[0].compile()
        return group

    def begin(self, group: SequenceGroup) -> bool:
        return self.of(1).reserve(group, self.of(0), self.now)

    def turn(self) -> None:
        """Lets each worker take a step."""
        for number in range(len(self.loops)):
            self.step(number)
            self.loops[number].compile()

    def lose(self, number: int) -> None:
        scheduler = self.loops[number].scheduler
        self.peers.leave(scheduler.state, self.now)
        for group in scheduler.evacuate():
            self.admission.add(group)
        del self.loops[number]

    def check(self) -> None:
        for loop in self.loops:
            loop.scheduler.check()
            loop.check_content(self.content, knows_all=self.knows_all)

    def assert_right(self) -> None:
        """All requests end with the tokens that they would have had anyway."""
        for _ in range(400):
            if not any(map(is_busy, self.loops)):
                break
            self.turn()
        for loop in self.loops:
            assert_all_free(loop)
            assert not is_busy(loop)
        for group in self.groups:
            prompt = group.request.prompt_token_ids
            if group.request.beam_search is not None:
                assert_found(group)
                continue
            for branch, tokens in enumerate(outputs(group)):
                assert tokens == expected(prompt, num_tokens=len(tokens), branch=branch)
            assert len(outputs(group)) == group.request.num_sequences

    def hand_over(self, group: SequenceGroup) -> None:
        assert self.begin(group)
        for _ in range(NUM_TURNS):
            self.turn()
        assert group in self.of(1).queues.running


def is_busy(loop: Loop) -> bool:
    scheduler = loop.scheduler
    return (
        scheduler.has_unfinished
        or is_moving(scheduler)
        or scheduler.state.connector.exchanges_groups
    )


def num_recomputed(group: SequenceGroup) -> int:
    """Tokens that were computed though they had been before."""
    events = [event for event in group.timeline.events if event.kind is EventKind.PREFILL]
    num_new = group.num_prompt_tokens - group.num_cached_tokens
    return sum(event.num_tokens for event in events) - num_new


REQUESTS: dict[str, dict[str, Any]] = {
    "one": {},
    "branches": {"n": 3},
    "beams": {"beam_search": BeamSearchParams(width=3)},
    "structured": {"structured_output": ("regex", "a")},
    "whole blocks": {"prompt": PROMPT[:20]},
}


@pytest.mark.parametrize("kind", REQUESTS)
@pytest.mark.parametrize("num_steps", [2, 3, 4, 5])
def test_a_running_group_goes_on_at_another_worker_without_recompute(
    kind: str, num_steps: int
) -> None:
    pair = Pair()
    group = pair.start(num_steps=num_steps, **REQUESTS[kind])
    pair.hand_over(group)
    assert not pair.of(0).queues.running
    pair.assert_right()
    assert num_recomputed(group) == 0
    assert group.num_preemptions == 0
    (event,) = (one for one in group.timeline.events if one.kind is EventKind.MIGRATED)
    assert event.worker == "w1:1"
    assert event.num_bytes == event.num_blocks * BLOCK_BYTES > 0
    assert (pair.of(0).num_out, pair.of(1).num_in) == (1, 1)
    assert pair.of(1).num_bytes == event.num_bytes


def test_a_group_computes_while_its_whole_blocks_are_copied() -> None:
    pair = Pair()
    group = pair.start()
    assert pair.begin(group)
    before = len(group.sequences[0].output_token_ids)
    num_paused = 0
    while group in pair.of(0).outgoing:
        pair.turn()
        num_paused += group.is_paused
    assert len(group.sequences[0].output_token_ids) > before
    assert 0 < num_paused <= 3
    pair.assert_right()


@pytest.mark.parametrize("num_tokens", [21, 61, 101])
def test_the_pause_does_not_grow_with_the_context(num_tokens: int) -> None:
    pair = Pair(num_cpu_blocks=80)
    group = pair.start(list(range(num_tokens)), num_steps=4, max_tokens=20)
    assert pair.begin(group)
    num_paused = num_moved = 0
    while group in pair.of(0).outgoing:
        num_moved += group.is_paused and pair.store(1).num_borrowed
        pair.turn()
        num_paused += group.is_paused
    assert num_paused <= 3
    pair.assert_right()


def test_a_group_is_not_paused_for_copies_that_have_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    # Of so few blocks that nothing is copied before the pause.
    group = pair.start(PROMPT[:7], num_steps=2, max_tokens=60)
    with monkeypatch.context() as patched:
        patched.setattr(BlockExports, "num_exportable", 0)
        assert pair.begin(group)
        pair.loops[0].send()  # a pause lasts until steps in flight are answered
        pair.step(1)
        assert not group.is_paused
        pair.loops[0].answer()
        for _ in range(NUM_TURNS):
            pair.turn()
    assert pair.of(0).num_aborted == 1
    pair.hand_over(group)
    pair.assert_right()


def test_a_paused_group_waits_a_while_for_room_that_others_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    group = pair.start(PROMPT[:7], num_steps=2, max_tokens=60)
    assert pair.begin(group)
    pair.loops[0].send()  # the group is paused while a step has it
    pair.step(1)
    assert group.is_paused
    with monkeypatch.context() as patched:
        patched.setattr(BlockExports, "num_exportable", 0)
        patched.setattr(BlockExports, "is_exporting", True)
        pair.loops[0].answer()
        pair.turn()
        assert group.is_paused
        pair.step(1, seconds=GRACE_S)
        pair.turn()
        assert not group.is_paused
    assert pair.of(0).num_aborted >= 1
    pair.assert_right()


def test_a_group_goes_on_copying_until_its_prompt_is_computed() -> None:
    pair = Pair(max_num_batched_tokens=8, num_cpu_blocks=80)
    group = pair.start(list(range(60)), num_steps=2, max_tokens=10)
    assert group.times.first_token is None
    pair.hand_over(group)
    pair.assert_right()
    assert num_recomputed(group) == 0


def test_what_the_destination_has_cached_is_not_copied() -> None:
    pair = Pair()
    pair.hand_over(pair.start())
    group = pair.start()  # with the five whole blocks of the same prompt
    pair.hand_over(group)
    (event,) = (one for one in group.timeline.events if one.kind is EventKind.MIGRATED)
    assert event.num_blocks < 5
    pair.assert_right()


def test_groups_that_share_a_prefix_share_it_at_the_destination() -> None:
    pair = Pair()
    groups = [pair.start(num_steps=2), pair.start(num_steps=2)]
    assert all(map(pair.begin, groups))
    for _ in range(NUM_TURNS):
        pair.turn()
    tables = [group.sequences[0].block_table for group in groups]
    assert tables[0][:5] == tables[1][:5]
    assert pair.of(1).queues.running == groups
    pair.assert_right()


@pytest.mark.parametrize("num_turns", [-1, 0, 1, 2, 3, 4, 5])
def test_nothing_is_found_that_was_cached_before_a_clear(num_turns: int) -> None:
    """The migration is begun after it, or so many turns before."""
    pair = Pair()
    group = pair.start(max_tokens=60)
    if num_turns >= 0:
        assert pair.begin(group)
    for _ in range(num_turns):
        pair.turn()
    (seq,) = group.sequences
    hashes = seq.block_hashes[4][: seq.num_cached_blocks]
    for loop in pair.loops:
        loop.scheduler.clear_prefix_cache(None, lambda _: None)
    if num_turns < 0:
        assert pair.begin(group)
    for _ in range(NUM_TURNS):
        pair.turn()
    assert len(hashes) >= 5
    for loop in pair.loops:
        for pool in (loop.scheduler.blocks.gpu, loop.scheduler.blocks.cpu):
            assert not any(map(pool.find, hashes))
    assert num_turns >= 0 or group in pair.of(1).queues.running
    pair.assert_right()
    assert num_recomputed(group) == 0


@pytest.mark.parametrize("kind", ["one", "branches"])
@pytest.mark.parametrize("num_turns", [-1, 0, 1, 2, 3, 4, 5, NUM_TURNS])
def test_nothing_is_found_that_went_wrong_for_another_group(num_turns: int, kind: str) -> None:
    """The migration is begun after that, or so many turns before; it may have ended by then."""
    pair = Pair(num_cpu_blocks=80)
    other = pair.start(num_steps=1, max_tokens=60)
    group = pair.start(**{"max_tokens": 60, **REQUESTS[kind]})
    seq = group.sequences[0]
    shared = seq.block_hashes[4][:5]
    assert other.sequences[0].block_table[:5] == seq.block_table[:5]
    if num_turns >= 0:
        assert pair.begin(group)
    for _ in range(num_turns):
        pair.turn()
    retract(pair.loops[0], other.sequences[0])
    pair.loops[0].scheduler.abort(other)
    pair.groups.remove(other)
    for _ in range(NUM_TURNS):
        pair.turn()
    if group in pair.of(0).queues.running:
        pair.step(1, seconds=RETRY_S)
        pair.hand_over(group)
    for loop in pair.loops:
        for pool in (loop.scheduler.blocks.gpu, loop.scheduler.blocks.cpu):
            assert not any(map(pool.find, shared))
    pair.assert_right()
    assert num_recomputed(group) == 0


def test_a_group_shares_the_blocks_that_it_has_at_the_destination_by_hash() -> None:
    """Also those that the CPU pool of the destination held before they came."""
    pair = Pair(num_cpu_blocks=80)
    group = pair.start(max_tokens=60)
    seq, destination = group.sequences[0], pair.loops[1].scheduler.blocks
    for name in seq.block_hashes[4][:5]:
        block = destination.cpu.allocate()
        destination.cpu.cache_block(block, name)
        pair.store(1).cpu[block] = dict(pair.content[name])
        destination.cpu.free(block)
    pair.hand_over(group)
    assert [destination.gpu.find(name) for name in seq.block_hashes[4][:5]] == seq.block_table[:5]
    pair.assert_right()
    assert num_recomputed(group) == 0


@pytest.mark.parametrize("num_turns", [0, 1, 2])
def test_a_group_does_not_go_to_blocks_that_went_wrong_at_the_destination(num_turns: int) -> None:
    pair = Pair(num_cpu_blocks=80)
    group = pair.start(max_tokens=60)
    other = pair.start(num_steps=0, max_tokens=60)
    for number in (1, 0, 1, 1):  # where it comes from the first worker
        pair.step(number)
    assert other in pair.of(1).queues.running
    wrong = other.sequences[0].block_table[:5]
    assert pair.begin(group)
    for _ in range(num_turns):
        pair.turn()
    assert group in pair.of(1).incoming
    retract(pair.loops[1], other.sequences[0])
    pair.step(1, seconds=RETRY_S)
    if group in pair.of(0).queues.running:
        pair.hand_over(group)
    assert set(group.sequences[0].block_table).isdisjoint(wrong)
    pair.assert_right()
    assert num_recomputed(group) == 0


def test_a_group_goes_back_to_where_it_came_from() -> None:
    pair = Pair()
    group = pair.start(max_tokens=60)
    pair.hand_over(group)
    assert pair.of(0).reserve(group, pair.of(1), pair.now)
    for _ in range(NUM_TURNS):
        pair.turn()
    assert pair.of(0).queues.running == [group]
    pair.assert_right()
    assert num_recomputed(group) == 0


def test_an_owner_that_drains_hands_all_over() -> None:
    pair = Pair(num_cpu_blocks=80, num_gpu_blocks=160)
    groups = [pair.start(num_steps=1) for _ in range(6)]
    pair.loops[0].scheduler.drain()
    for _ in range(3 * NUM_TURNS):
        pair.turn()
    assert not pair.loops[0].scheduler.has_unfinished
    pair.assert_right()
    assert sum(map(num_recomputed, groups)) == 0


def test_a_worker_that_joins_takes_over_from_one_that_has_swapped() -> None:
    pair = Pair(1, num_gpu_blocks=20, num_cpu_blocks=80)
    first, second = pair.start(max_tokens=50), pair.start([1] * 21, max_tokens=50)
    while not pair.loops[0].scheduler.swapped:
        pair.step(0)
    pair.loops.append(pair.join(1, num_cpu_blocks=80))
    for _ in range(NUM_TURNS // 2):
        pair.turn()
    assert pair.of(1).queues.running == [first]
    assert pair.of(0).queues.running == [second], "it has come back"
    pair.assert_right()
    assert first.num_preemptions + num_recomputed(first) + num_recomputed(second) == 0


def test_workers_that_are_all_full_keep_what_they_have() -> None:
    pair = Pair(num_gpu_blocks=20, num_cpu_blocks=80)
    pair.start(max_tokens=30)
    other = make_request([2] * 61, max_tokens=10, arrival=9.0)
    pair.content |= content_of(other, block_size=4)
    pair.groups.append(other)
    pair.admission.add(other)
    pair.step(1)
    pair.start([1] * 21, max_tokens=30)
    while not pair.of(0).queues.swapped:
        pair.step(0)
    pair.step(0)
    assert not pair.of(0).outgoing
    pair.assert_right()


# What cannot be taken


@pytest.mark.parametrize(
    "fields",
    [
        {"num_gpu_blocks": 12},
        {"max_num_seqs": 1},
        {"kv_format": "other", "store": StoreCapacity(kind="memory")},
    ],
)
def test_a_worker_without_room_or_of_another_format_takes_nothing(fields: dict[str, Any]) -> None:
    pair = Pair()
    group = pair.start(n=2)
    pair.loops.append(pair.join(2, **fields))
    assert not pair.of(2).reserve(group, pair.of(0), pair.now)
    assert not pair.of(2).blocks.gpu.num_holds()
    assert not pair.of(0).outgoing
    pair.assert_right()


def test_what_is_kept_for_a_group_is_nobody_elses() -> None:
    pair = Pair()
    group = pair.start(n=3)
    num_free = pair.loops[1].scheduler.blocks.gpu.num_free
    assert pair.begin(group)
    pair.step(1)
    assert pair.of(1).queues.num_held_slots == 3
    num_blocks = len(pair.of(0).blocks.distinct_blocks(group))
    assert pair.loops[1].scheduler.blocks.gpu.num_free <= num_free - num_blocks
    pair.assert_right()


def test_what_runs_at_the_destination_comes_before_what_may_come() -> None:
    pair = Pair(num_gpu_blocks=26, num_cpu_blocks=40)
    group = pair.start()
    pair.store(1).ends_at_once = False  # so that nothing comes
    other = make_request(list(range(50, 83)), max_tokens=30, arrival=9.0)
    pair.content |= content_of(other, block_size=4)
    pair.groups.append(other)
    pair.admission.add(other)
    pair.step(1)
    assert pair.begin(group)
    while pair.of(1).incoming:
        pair.step(1)
    assert other.num_preemptions == 0
    pair.store(1).ends_at_once = True
    pair.assert_right()


# What fails


def abort(pair: Pair, group: SequenceGroup) -> None:
    pair.groups.remove(group)
    for loop in pair.loops:
        if loop.scheduler.holds(group):
            loop.scheduler.abort(group)


def lose_owner(pair: Pair, group: SequenceGroup) -> None:
    pair.lose(0)


def lose_destination(pair: Pair, group: SequenceGroup) -> None:
    pair.lose(1)


def drain_destination(pair: Pair, group: SequenceGroup) -> None:
    pair.loops[1].scheduler.drain()


def stop_a_branch(pair: Pair, group: SequenceGroup) -> None:
    for loop in pair.loops:
        if loop.scheduler.holds(group) and not group.awaits_answers:
            loop.scheduler.stop_sequence(group, index=0, keep_tokens=1)


def preempt(pair: Pair, group: SequenceGroup) -> None:
    """A group before it needs all blocks of the source."""
    large = make_request(list(range(100)), max_tokens=28, arrival=-1.0)
    pair.content |= content_of(large, block_size=4)
    pair.groups.append(large)
    pair.admission.add(large)
    pair.step(0)


def fail_a_round(pair: Pair, group: SequenceGroup) -> None:
    for move_id in list(pair.store(1).pending):
        pair.store(1).end(move_id, most=1, failed="UNAVAILABLE")


def be_late(pair: Pair, group: SequenceGroup) -> None:
    pair.now += 10 * GRACE_S


def go_wrong(pair: Pair, group: SequenceGroup) -> None:
    """A sequence fails with which the group shares its prompt."""
    other = pair.start(num_steps=1, max_tokens=3)
    pair.groups.remove(other)
    for loop in pair.loops:
        if loop.scheduler.holds(other):
            retract(loop, other.sequences[0])
            loop.scheduler.abort(other)


HARMS = [
    abort,
    lose_owner,
    lose_destination,
    drain_destination,
    stop_a_branch,
    preempt,
    fail_a_round,
    be_late,
    go_wrong,
]


@pytest.mark.parametrize("kind", ["one", "branches", "beams"])
@pytest.mark.parametrize("harm", HARMS)
def test_whatever_happens_in_whatever_state_tokens_are_right_and_nothing_is_left(
    harm: Callable[[Pair, SequenceGroup], None], kind: str
) -> None:
    """Each worker takes a step a turn; a step of one lies between the harm and its next."""
    states = set()
    for num_steps in range(NUM_TURNS + 2):
        pair = Pair(num_cpu_blocks=40)
        group = pair.start(**REQUESTS[kind])
        assert pair.begin(group)
        for index in range(num_steps):
            pair.step(index % 2)
        if (migration := pair.of(0).outgoing.get(group)) is not None:
            states.add((migration.has_paused, migration.fetch is not None))
        harm(pair, group)
        pair.assert_right()
    assert states >= {(False, True), (True, True), (True, False)}, "else some state was not tried"


def test_a_grammar_that_the_destination_forgets_meanwhile_is_compiled_again() -> None:
    """Each worker has memory for one."""
    num_aborted = 0
    for num_steps in range(2 * NUM_TURNS):
        pair = Pair(num_cpu_blocks=40, grammar_bytes=GROWTH_BYTES)
        group = pair.start(structured_output=("regex", "a"))
        pair.store(1).ends_at_once = False
        assert pair.begin(group)
        for index in range(num_steps):
            pair.step(index % 2)
            pair.loops[index % 2].compile()
        pair.start(structured_output=("regex", "b"), max_tokens=2, num_steps=0)
        pair.step(1)
        pair.loops[1].compile()
        pair.store(1).ends_at_once = True
        pair.assert_right()
        num_aborted += pair.of(0).num_aborted
    assert num_aborted > 0, "else it was forgotten in no state"


def test_a_draining_worker_tries_again_later() -> None:
    pair = Pair()
    group = pair.start()
    pair.store(1).ends_at_once = False
    pair.loops[0].scheduler.drain()
    pair.turn()
    fail_a_round(pair, group)
    pair.turn()
    assert pair.of(0).num_aborted == 1
    assert not pair.of(0).outgoing
    pair.store(1).ends_at_once = True
    pair.now += RETRY_S
    for _ in range(NUM_TURNS):
        pair.turn()
    assert pair.of(1).queues.running == [group]
    pair.assert_right()


@pytest.mark.parametrize(
    ("source_s", "destination_s", "most"), [(0.0, 0.0, 1), (0.16, 0.0, 2), (0.0, 0.16, 2)]
)
def test_more_blocks_are_exported_at_a_time_where_either_worker_takes_long_for_a_step(
    source_s: float, destination_s: float, most: int
) -> None:
    """A block takes 5 ms to copy, and two 1/16 of the longer steps."""
    pair = Pair(num=0)
    for number in range(2):
        cost = CostModel(block_bytes=BLOCK_BYTES, copy_bytes_per_s=200 * BLOCK_BYTES)
        pair.loops.append(pair.join(number, cost=cost))
    other = make_request(PROMPT[::-1], max_tokens=40, arrival=9.0)
    pair.content |= content_of(other, block_size=4)
    pair.groups.append(other)
    pair.admission.add(other)
    for _ in range(3):
        pair.step(1, seconds=destination_s)
    group = pair.start()
    pair.step(0, seconds=source_s)
    assert pair.begin(group)
    moves, seen = transfers(pair.loops[0].scheduler).transfers, 0
    while group not in pair.of(1).queues.running:
        for number, seconds in enumerate((source_s, destination_s)):
            pair.step(number, seconds=seconds)
            seen = max(seen, moves.num_blocks(TransferKind.EXPORT))
    assert seen == most
    pair.assert_right()


@pytest.mark.parametrize("seconds", [0.5 * LONG_STEP_S, 2 * LONG_STEP_S])
def test_a_long_step_is_enough_in_flight_while_a_group_leaves(seconds: float) -> None:
    pair = Pair()
    group = pair.start(max_tokens=48)
    source = pair.loops[0].scheduler
    pair.step(0, seconds=seconds)
    pair.loops[0].send()
    assert not source.has_enough_in_flight
    assert pair.begin(group)
    assert source.has_enough_in_flight is (seconds > LONG_STEP_S)
    pair.loops[0].answer()
    assert not source.has_enough_in_flight
    pair.of(0).outgoing[group].abort(pair.now)
    pair.loops[0].send()
    assert not source.has_enough_in_flight
    pair.assert_right()
