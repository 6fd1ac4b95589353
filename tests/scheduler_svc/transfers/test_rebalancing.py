"""Groups go to a worker with less to do until both have about as much, if that pays."""

from collections.abc import Callable
from typing import Any

import pytest

from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.transfers.peer_reads import PAUSE_S, PeerReads
from signalbox_scheduler.transfers.peer_registry import LEAST_SURPLUS, SURPLUS_SHARE
from tests.scheduler_svc.fake_store import BLOCK_BYTES
from tests.scheduler_svc.make import Loop, make_request
from tests.scheduler_svc.transfers.test_migration_histories import MigrationHistory
from tests.scheduler_svc.transfers.test_migrations import Pair, abort, fail_a_round, num_recomputed

NUM_GROUPS = 8
LONG = 100
SEQUENCE_S = 0.005
"""Time that each sequence adds to a step."""


class Busy(Pair):
    """A worker that runs groups beside which others join; steps take time for each sequence."""

    def __init__(self, num: int = 1, *, sequence_s: float = SEQUENCE_S, **fields: Any) -> None:
        self.sequence_s = sequence_s
        self.fields = {"num_gpu_blocks": 800, "num_cpu_blocks": 200, "max_num_seqs": 32, **fields}
        super().__init__(num, **self.fields)

    def step(self, number: int) -> None:
        loop = self.loops[number]
        loop.now = max(loop.now, self.now)
        loop.send()
        loop.now += 0.01 + self.sequence_s * len(loop.scheduler.running)
        loop.answer()
        self.now = loop.now
        self.check()

    def fill(self, num: int = NUM_GROUPS, *, num_steps: int = 20, **request: Any) -> None:
        for index in range(num):
            self.start([index] * 9, num_steps=1, **{"max_tokens": LONG, **request})
        for _ in range(num_steps):
            self.step(0)

    def join_now(self, **fields: Any) -> None:
        self.loops.append(self.join(len(self.loops), **self.fields | fields))

    def turns(self, num: int) -> None:
        for _ in range(num):
            self.turn()

    @property
    def loads(self) -> list[int]:
        return [self.of(number).num_seqs for number in range(len(self.loops))]

    @property
    def num_moved(self) -> int:
        return sum(group.num_migrations for group in self.groups)


def margin(load: int) -> float:
    return max(LEAST_SURPLUS, SURPLUS_SHARE * load)


def test_a_worker_that_joins_takes_over_until_the_load_is_even() -> None:
    busy = Busy()
    busy.fill()
    busy.join_now()
    busy.turns(40)
    most, least = busy.loads
    assert most - least <= margin(most)
    assert busy.num_moved == least, "each once"
    busy.assert_right()
    assert sum(map(num_recomputed, busy.groups)) == 0


def most_copied(busy: Busy, num_turns: int) -> int:
    """Returns the most blocks that a step of the first worker copies for groups that compute."""
    worker, most = busy.loops[0].worker, 0
    for _ in range(num_turns):
        num_before = worker.num_swapped_out
        busy.turn()
        if not any(migration.has_paused for migration in busy.of(0).outgoing.values()):
            most = max(most, worker.num_swapped_out - num_before)
    return most


@pytest.mark.parametrize(("has_to_leave", "most"), [(False, 3), (True, 5)])
def test_a_step_copies_less_for_a_group_that_is_rebalanced_than_for_one_that_has_to_leave(
    has_to_leave: bool, most: int
) -> None:
    """A block takes a millisecond to copy, and a step of eight sequences 30."""
    cost = CostModel(block_bytes=BLOCK_BYTES, copy_bytes_per_s=1e3 * BLOCK_BYTES)
    busy = Busy(cost=cost, sequence_s=0.0025)
    busy.fill(num_steps=40)
    busy.join_now()
    if has_to_leave:
        assert busy.begin(busy.groups[-1])
    assert most_copied(busy, 20) == most
    busy.assert_right()
    assert busy.num_moved


def test_several_workers_that_join_share_the_load() -> None:
    busy = Busy()
    busy.fill(12)
    busy.join_now()
    busy.join_now()
    busy.turns(50)
    assert max(busy.loads) - min(busy.loads) <= margin(max(busy.loads))
    busy.assert_right()


def test_one_group_at_a_time_goes_from_a_worker_to_another() -> None:
    busy = Busy()
    busy.fill()
    busy.join_now()
    for _ in range(40):
        busy.turn()
        assert len(busy.of(0).outgoing) <= 1
    busy.assert_right()
    assert busy.num_moved > 1


def test_a_group_of_many_sequences_does_not_turn_the_load_around() -> None:
    busy = Busy()
    busy.fill(1, n=6, num_steps=30)
    busy.join_now()
    busy.turns(30)
    assert busy.num_moved == 0
    busy.assert_right()


def set_role(busy: Busy) -> None:
    busy.of(1).only_prefills = True


def drain(busy: Busy) -> None:
    busy.loops[1].scheduler.drain()


def let_link_fail(busy: Busy) -> None:
    busy.of(1).peer.reads._pause(busy.of(0).peer.exports, busy.now)


@pytest.mark.parametrize("obstacle", [set_role, drain, let_link_fail])
def test_nothing_goes_to_a_worker_that_should_not_have_it(
    obstacle: Callable[[Busy], None],
) -> None:
    busy = Busy()
    busy.fill()
    busy.join_now()
    obstacle(busy)
    began_at = busy.now
    while busy.now < began_at + min(1.0, PAUSE_S):
        busy.turn()
    assert busy.num_moved == 0
    assert not busy.of(0).outgoing
    busy.of(1).only_prefills = False
    busy.assert_right()


def test_nothing_moves_while_a_request_waits_that_the_other_worker_may_take() -> None:
    busy = Busy(max_num_seqs=NUM_GROUPS)
    busy.fill()
    busy.join_now()
    waiting = make_request([7] * 9, max_tokens=2, arrival=1e9)
    busy.admission.add(waiting)
    for _ in range(20):
        busy.step(0)
    assert not busy.of(0).outgoing
    busy.turns(40)
    assert waiting.is_finished
    assert busy.num_moved > 1
    busy.assert_right()


def test_a_request_that_waits_for_its_adapter_keeps_nothing_from_moving() -> None:
    busy = Busy()
    busy.fill()
    busy.join_now()
    waiting = make_request([7] * 9, max_tokens=2, arrival=1e9, adapter="missing")
    busy.admission.add(waiting)
    busy.turns(20)
    assert busy.num_moved > 1
    busy.admission.remove(waiting)
    busy.assert_right()


def test_a_worker_that_is_not_faster_with_fewer_sequences_gets_one_and_no_more() -> None:
    busy = Busy(sequence_s=0.0)
    busy.fill()
    busy.join_now()
    busy.turns(40)
    assert busy.num_moved == 1, "by which it is known"
    busy.assert_right()


def test_a_group_that_is_about_to_end_stays() -> None:
    busy = Busy()
    busy.fill(max_tokens=22)
    busy.join_now()
    busy.assert_right()
    assert busy.num_moved == 0


def test_copies_that_take_longer_than_they_save_are_not_made() -> None:
    slow = CostModel(block_bytes=BLOCK_BYTES, peer_bytes_per_s=BLOCK_BYTES / 10)
    busy = Busy(cost=slow)
    busy.fill()
    busy.join_now()
    busy.assert_right()
    assert busy.num_moved == 0


def test_what_cannot_be_taken_over_is_left_alone_for_a_while() -> None:
    busy = Busy()
    busy.fill()
    busy.join_now()
    busy.store(1).ends_at_once = False
    while not busy.of(0).outgoing:
        busy.turn()
    (group,) = busy.of(0).outgoing
    fail_a_round(busy, group)
    busy.turn()
    assert busy.of(0).num_aborted == 1
    busy.store(1).ends_at_once = True
    busy.turns(5)
    assert not busy.of(0).outgoing, "its reads have just failed"
    busy.now += PAUSE_S
    busy.turns(40)
    assert busy.num_moved > 1
    busy.assert_right()


def test_groups_that_end_here_and_there_set_little_moving() -> None:
    """Of three workers, each busiest in turn, no group moves back and forth."""
    busy = Busy(3)
    for index in range(60):
        busy.start([index] * 9, num_steps=0, max_tokens=10 + 37 * index % 150)
        busy.turns(2)
        running = busy.of(index % 3).queues.running
        if index % 4 == 3 and len(running) > 1:
            abort(busy, running[0])
    busy.assert_right()
    moves = [group.num_migrations for group in busy.groups]
    assert max(moves) <= 3
    assert sum(moves) <= len(moves)


class JoiningHistory(MigrationHistory):
    """Histories of workers beside which others join; they rebalance by themselves."""

    def _step(self, loop: Loop) -> bool:
        loop.now = max(loop.now, self.now)
        has_sent = loop.send()
        loop.now += 5 * SEQUENCE_S * sum(len(group.unfinished) for group in loop.scheduler.running)
        has_answered = loop.answer() is not None or loop.compile()
        self.now = loop.now
        self.check()
        return has_sent or has_answered

    def add(self) -> None:
        """A worker that is alone gets as many as it has places for."""
        for _ in range(self.rng.choice([1, 8])):
            super().add()

    def join(self) -> None:
        if len(self.loops) < 6:
            self.loops.append(self._join())

    @property
    def events(self) -> dict[Callable[[], None], float]:
        events = super().events | {self.join: 3, self.lose_worker: 2, self.add: 2}
        del events[self.hand_over]
        return events


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whatever_happens_while_workers_join_output_is_exact(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the reads that fail would leave little to move.
    monkeypatch.setattr(PeerReads, "avoids", lambda *_: False)
    histories = [JoiningHistory(seed) for seed in range(first, first + 10)]
    for history in histories:
        history.run()
    assert sum(one.num_out for one in histories) > 10, "else this proves little"
    moves = [group.num_migrations for history in histories for group in history.groups]
    assert max(moves) <= 4
