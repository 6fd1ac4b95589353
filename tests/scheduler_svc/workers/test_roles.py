"""Workers that compute prompts migrate groups to workers that decode; neither is waited for."""

import random
from collections.abc import Callable
from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.errors import Code
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import Disaggregation, PeerIdentity
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.transfers.worker_migrations import WorkerMigrations
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.roles import resolve
from tests.scheduler_svc.fake_store import FakeStore
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    MODEL,
    Loop,
    assert_all_free,
    is_moving,
    make_arrival,
    make_loop,
    make_scheduler,
    outputs,
    transfers,
)
from tests.scheduler_svc.routers import Router, failure_of

BOTH, PREFILL, DECODE = WorkerRole.BOTH, WorkerRole.PREFILL, WorkerRole.DECODE
PROMPT = list(range(11, 32))  # five blocks of four tokens, and a token
NUM_TOKENS = 30
MOST_TURNS = 400


class Pool:
    """Workers of a cluster, each of which takes a step a turn."""

    def __init__(
        self, *roles: WorkerRole, mode: Disaggregation = Disaggregation.STATIC, **fields: Any
    ) -> None:
        self.now = 0.0
        self.cluster = Cluster(disaggregation=mode, clock=lambda: self.now)
        self.cluster.serve(MODEL)
        self.router = Router()
        self.tickets: dict[bytes, tuple[FakeStore, int]] = {}
        self.groups: list[SequenceGroup] = []
        self.workers: dict[str, tuple[StepLoop, Loop]] = {}
        self.num_requests = 0
        for role in roles:
            self.join(role, **fields)

    def make(self, role: WorkerRole, *, kv_format: str = "one", **fields: Any) -> StepLoop:
        """Returns a worker that has not joined."""
        name = f"w{self.num_requests}-{len(self.workers)}:1"
        identity = PeerIdentity(address=name, epoch=7 + len(self.workers), kv_format=kv_format)
        scheduler = make_scheduler(
            admission=self.cluster.admission,
            worker_name=name,
            identity=identity,
            **{"num_cpu_blocks": 40, "num_gpu_blocks": 160, **fields},
        )
        steps = StepLoop(
            scheduler, send_updates=self.cluster.requests.send_updates, prepare=lambda _: None
        )
        steps.asked_role = role
        return steps

    def join(self, role: WorkerRole, **fields: Any) -> str:
        steps = self.make(role, **fields)
        loop = make_loop(steps.scheduler, kept={}, step_s=0.001)
        assert loop.worker.store is not None
        loop.worker.store.tickets = self.tickets
        self.workers[steps.worker_name] = steps, loop
        self.cluster.join(steps)
        return steps.worker_name

    def names(self, role: WorkerRole) -> list[str]:
        """Returns the workers that have a role now."""
        loops = self.cluster.step_loops
        return [loop.worker_name for loop in loops if self.cluster.roles.of(loop) is role]

    def of(self, name: str) -> WorkerMigrations:
        return transfers(self.workers[name][0].scheduler).migrations

    def ask(self, prompt: list[int] = PROMPT, **request: Any) -> SequenceGroup:
        self.num_requests += 1
        fields = {"max_tokens": NUM_TOKENS, **request}
        group = make_arrival(
            prompt,
            reply_to=self.router,
            arrival=self.now,
            handle=self.num_requests,
            request_id=f"r{self.num_requests}",
            **fields,
        )
        assert self.cluster.requests.add(group)
        self.groups.append(group)
        return group

    def step(self, name: str) -> None:
        """Lets a worker take its oldest step, and have another planned."""
        _, loop = self.workers[name]
        loop.now = max(loop.now, self.now)
        loop.send()
        self.cluster.check()
        outcome = loop.answer()
        self.now = max(self.now, loop.now)
        if outcome is not None:
            self.cluster.requests.send_updates(outcome)
        loop.compile()
        self.cluster.check()

    def turn(self) -> None:
        for name in list(self.workers):
            self.step(name)

    def lose(self, name: str) -> None:
        steps, _ = self.workers.pop(name)
        self.cluster.leave(steps)
        self.cluster.check()

    def drain(self, name: str) -> None:
        self.cluster.drain(self.workers[name][0])
        self.cluster.check()

    def finish(self) -> None:
        """Runs until each request has ended, right unless it failed, and nothing is left."""
        began_at, num_turns = self.now, 0
        while len(self.cluster.requests) and num_turns < MOST_TURNS:
            self.turn()
            num_turns += 1
        assert not len(self.cluster.requests), "a request has no end"
        ended_at = self.now
        for _ in range(20):
            self.turn()
        for _, loop in self.workers.values():
            assert_all_free(loop)
            assert not is_moving(loop.scheduler)
            assert not loop.scheduler.state.connector.exchanges_groups
        assert ended_at - began_at < 0.002 * MOST_TURNS * max(1, len(self.workers)), "it waited"
        for group in self.groups:
            if group.failure is None:
                self.assert_output(group)

    def assert_output(self, group: SequenceGroup) -> None:
        prompt = group.request.prompt_token_ids
        assert len(outputs(group)) == group.request.num_sequences
        for branch, tokens in enumerate(outputs(group)):
            assert len(tokens) == group.request.max_tokens or tokens[-1] == 0
            assert tokens == expected(prompt, num_tokens=len(tokens), branch=branch)


def workers_of(group: SequenceGroup) -> list[str]:
    """Names the worker that computed the prompt, and those that took the group over."""
    kinds = (EventKind.SCHEDULED, EventKind.MIGRATED)
    return [event.worker for event in group.timeline.events if event.kind in kinds]


# Roles of a pool


def make_loops(*roles: WorkerRole) -> dict[StepLoop, WorkerRole]:
    pool = Pool()
    return {pool.make(role): role for role in roles}


@pytest.mark.parametrize(
    ("wanted", "roles"),
    [
        ([BOTH, BOTH], [BOTH, BOTH]),
        ([PREFILL, DECODE], [PREFILL, DECODE]),
        ([PREFILL, DECODE, BOTH], [PREFILL, DECODE, BOTH]),
        ([PREFILL, BOTH], [PREFILL, DECODE]),
        ([BOTH, DECODE], [PREFILL, DECODE]),
        ([PREFILL, PREFILL], [BOTH, BOTH]),
        ([DECODE], [BOTH]),
        ([], []),
    ],
)
def test_a_role_that_no_worker_has_is_taken_by_others(
    wanted: list[WorkerRole], roles: list[WorkerRole]
) -> None:
    assert list(resolve(make_loops(*wanted)).values()) == roles


def test_off_lets_all_workers_do_both() -> None:
    pool = Pool(PREFILL, DECODE, mode=Disaggregation.OFF)
    group = pool.ask()
    pool.finish()
    assert len(pool.names(BOTH)) == 2
    assert len(workers_of(group)) == 1


# What goes where


@pytest.mark.parametrize("request_fields", [{}, {"num_sequences": 3}, {"prompt": PROMPT[:20]}])
def test_a_prompt_is_computed_apart_and_its_first_token_is_sent_before_it_has_moved(
    request_fields: dict[str, Any],
) -> None:
    pool = Pool(PREFILL, DECODE)
    first, second = pool.workers
    group = pool.ask(**request_fields)
    while group.times.first_token is None:
        pool.turn()
    assert pool.workers[first][0].scheduler.holds(group)
    pool.finish()
    assert workers_of(group) == [first, second]
    computed = [event for event in group.timeline.events if event.kind is EventKind.PREFILL]
    assert sum(event.num_tokens for event in computed) == group.num_prompt_tokens


def test_a_worker_that_decodes_takes_no_prompt_while_the_other_is_full() -> None:
    pool = Pool(DECODE, max_num_seqs=2)
    pool.join(PREFILL, max_num_seqs=1)
    decode, prefill = pool.workers
    groups = [pool.ask() for _ in range(6)]
    pool.finish()
    assert {workers_of(group)[0] for group in groups} == {prefill}
    assert any(decode in workers_of(group) for group in groups)


def test_a_worker_goes_on_with_a_prompt_for_which_no_other_has_room() -> None:
    pool = Pool(PREFILL)
    pool.join(DECODE, num_gpu_blocks=33, max_num_seqs=1)
    prefill, decode = pool.workers
    groups = [pool.ask() for _ in range(3)]
    pool.finish()
    assert any(workers_of(group) == [prefill] for group in groups)
    assert any(workers_of(group) == [prefill, decode] for group in groups)


def test_workers_that_compute_prompts_hand_nothing_to_each_other() -> None:
    pool = Pool(PREFILL, PREFILL, DECODE, max_num_seqs=2)
    groups = [pool.ask() for _ in range(8)]
    pool.finish()
    decode = list(pool.workers)[2]
    assert {name for group in groups for name in workers_of(group)[1:]} == {decode}


def test_a_worker_that_joins_takes_its_role() -> None:
    pool = Pool(PREFILL)
    assert len(pool.names(BOTH)) == 1
    group = pool.ask()
    for _ in range(5):
        pool.turn()
    decode = pool.join(DECODE)
    assert pool.names(PREFILL)
    pool.finish()
    assert workers_of(group)[1:] == [decode]


# What fails


def abort(pool: Pool, group: SequenceGroup) -> None:
    pool.cluster.requests.abort(group)


def run_out_of_time(pool: Pool, group: SequenceGroup) -> None:
    assert group.deadline is not None
    pool.now = max(pool.now, group.deadline)
    pool.cluster.requests.expire()


def lose_prefill(pool: Pool, group: SequenceGroup) -> None:
    pool.lose(next(iter(pool.workers)))


def lose_decode(pool: Pool, group: SequenceGroup) -> None:
    pool.lose(list(pool.workers)[1])


def drain_prefill(pool: Pool, group: SequenceGroup) -> None:
    pool.drain(next(iter(pool.workers)))


def drain_decode(pool: Pool, group: SequenceGroup) -> None:
    pool.drain(list(pool.workers)[1])


def fail_the_copy(pool: Pool, group: SequenceGroup) -> None:
    for _, loop in pool.workers.values():
        store = loop.worker.store
        assert store is not None
        for move_id in list(store.pending):
            store.end(move_id, most=1, failed="UNAVAILABLE")


HARMS = [
    abort,
    run_out_of_time,
    lose_prefill,
    lose_decode,
    drain_prefill,
    drain_decode,
    fail_the_copy,
]


def state_of(pool: Pool, group: SequenceGroup) -> str:
    """Says how far a request is on its way from worker to worker."""
    if group in pool.cluster.admission:
        return "queued"
    for _, loop in pool.workers.values():
        migrations = transfers(loop.scheduler).migrations
        if group in migrations.outgoing:
            return "paused" if group.is_paused else "copying"
        if migrations.num_in and loop.scheduler.holds(group):
            return "taken over"
    return "computing"


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("num_sequences", [1, 3])
def test_whatever_happens_on_the_way_all_requests_end_and_no_block_is_kept(
    harm: Callable[[Pool, SequenceGroup], None], num_sequences: int
) -> None:
    """The harm comes after each number of steps; the last worker of a role is lost or drains."""
    states = set()
    for num_steps in range(20):
        pool = Pool(PREFILL, DECODE, max_num_batched_tokens=16)
        group = pool.ask(num_sequences=num_sequences, deadline=5.0)
        other = pool.ask([5] * 30)
        names = list(pool.workers)
        for index in range(num_steps):
            pool.step(names[index % 2])
        states.add(state_of(pool, group))
        harm(pool, group)
        pool.finish()
        assert other.failure is None
        if harm is abort:
            assert group.failure is not None
        elif harm is run_out_of_time:
            assert failure_of(pool.router, 1)[0] is Code.DEADLINE_EXCEEDED
        else:
            assert group.failure is None
    assert states >= {"queued", "copying", "paused", "taken over"}, "else one was not tried"


@pytest.mark.parametrize("harm", [lose_prefill, lose_decode, drain_prefill, drain_decode])
def test_the_last_worker_of_a_role_leaves_it_to_the_others(
    harm: Callable[[Pool, SequenceGroup], None],
) -> None:
    pool = Pool(PREFILL, DECODE)
    group = pool.ask()
    pool.turn()
    harm(pool, group)
    (left,) = (loop for loop in pool.cluster.step_loops if not loop.is_draining)
    assert pool.cluster.roles.of(left) is BOTH
    late = pool.ask()
    pool.finish()
    assert workers_of(late) == [left.worker_name]
    assert late.failure is None


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_of_aborts_leaves_nothing_behind(seed: int) -> None:
    rng = random.Random(seed)
    pool = Pool(PREFILL, DECODE, DECODE, max_num_seqs=8, max_num_batched_tokens=24)
    for _ in range(60):
        pool.ask([rng.randrange(90)] * rng.randrange(5, 60), num_sequences=rng.choice([1, 1, 3]))
    while live := list(pool.cluster.requests.live_groups):
        for group in rng.sample(live, min(len(live), 6)):
            pool.cluster.requests.abort(group)
        for _ in range(rng.randrange(3)):
            pool.step(rng.choice(list(pool.workers)))
    pool.finish()
    assert len(pool.router.ended) < pool.num_requests, "aborted requests have no answer"


# Pools that cannot have roles


def test_workers_of_other_blocks_are_refused_by_name_where_there_are_roles() -> None:
    pool = Pool(PREFILL)
    roles = pool.cluster.roles
    assert roles.refusal(pool.make(DECODE)) == ""
    other = roles.refusal(pool.make(BOTH, kv_format="another"))
    assert "not those of the worker at w0-0:1" in other
    assert "tensor-parallel size and pipeline-parallel size" in other


def test_workers_that_pool_are_refused_where_there_are_roles() -> None:
    pool = Pool(BOTH)
    roles = pool.cluster.roles
    assert roles.refusal(pool.make(BOTH), pools=True) == ""
    assert "leave --role out" in roles.refusal(pool.make(DECODE), pools=True)


def test_workers_without_swap_space_are_refused_where_there_are_roles() -> None:
    pool = Pool(BOTH, num_cpu_blocks=0)
    roles = pool.cluster.roles
    assert roles.refusal(pool.make(BOTH, kv_format="another")) == ""
    assert "--swap-space" in roles.refusal(pool.make(PREFILL, num_cpu_blocks=0))
    assert "the worker at w0-0:1 cannot" in roles.refusal(pool.make(PREFILL))
    off = Pool(BOTH, num_cpu_blocks=0, mode=Disaggregation.OFF).cluster.roles
    assert off.refusal(pool.make(PREFILL)) == ""


def test_workers_with_states_have_roles() -> None:
    pool = Pool()
    groups = (FULL_GROUP, CacheGroup(kind="state", state_blocks=3))
    assert pool.cluster.roles.refusal(pool.make(PREFILL, groups=groups)) == ""
