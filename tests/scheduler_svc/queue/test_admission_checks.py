"""What is refused at once since too much waits or lives; what a deadline ends, in each state."""

import pytest

from signalbox_contract.errors import Code
from signalbox_scheduler.config import AdmissionBounds, PolicySettings
from signalbox_scheduler.queue.policies import FirstComeFirstServed, make_policy
from signalbox_scheduler.requests.sequence_group import RouterSession, SequenceGroup, SequenceStatus
from tests.scheduler_svc.make import Loop, join_worker, make_arrival, make_cluster
from tests.scheduler_svc.routers import Router, failure_of, finish

PROMPT_TOKENS = 5


def make_group(
    handle: int,
    router: RouterSession | None = None,
    *,
    prompt: list[int] | None = None,
    **fields: object,
) -> SequenceGroup:
    return make_arrival(
        [handle] * PROMPT_TOKENS if prompt is None else prompt,
        reply_to=router,
        arrival=float(handle),
        **{"handle": handle, "request_id": f"r{handle}"} | fields,
    )


def failure_of_next(bounds: AdmissionBounds, num_waiting: int) -> object:
    """Returns how one more request ends when others wait; None if it is let in."""
    cluster, router = make_cluster(bounds=bounds), Router()
    _, loop = join_worker(cluster)
    for handle in range(num_waiting):
        assert cluster.requests.add(make_group(handle, router))
    is_in = cluster.requests.add(make_group(90, router))
    failure = None if is_in else failure_of(router, 90)
    cluster.check()
    finish(cluster, loop)
    return failure


@pytest.mark.parametrize("num_waiting", [1, 2])
def test_requests_that_may_wait_are_bounded(num_waiting: int) -> None:
    failure = failure_of_next(AdmissionBounds(max_queued_requests=2), num_waiting)
    too_many = (Code.RESOURCE_EXHAUSTED, "there is no room behind 2 waiting requests", 1.0)
    assert failure == (None if num_waiting < 2 else too_many)


@pytest.mark.parametrize(("most", "is_in"), [(3 * PROMPT_TOKENS, True), (14, False)])
def test_prompt_tokens_that_may_wait_are_bounded(most: int, is_in: bool) -> None:
    failure = failure_of_next(AdmissionBounds(max_queued_tokens=most), 2)
    too_many = (
        Code.RESOURCE_EXHAUSTED,
        "10 tokens of prompts and predictions are waiting already; with 5 more they would exceed"
        " 14",
        1.0,
    )
    assert failure == (None if is_in else too_many)


def test_tokens_of_predictions_that_may_wait_are_bounded_with_those_of_prompts() -> None:
    cluster = make_cluster(bounds=AdmissionBounds(max_queued_tokens=4 * PROMPT_TOKENS - 1))
    router, predicted = Router(), {"prediction": (1,) * PROMPT_TOKENS}
    _, loop = join_worker(cluster)
    assert cluster.requests.add(make_group(1, router, **predicted))
    assert not cluster.requests.add(make_group(2, router, **predicted))
    assert failure_of(router, 2)[1].startswith("10 tokens of prompts and predictions are waiting")
    assert cluster.requests.add(make_group(3, router))
    cluster.check()
    finish(cluster, loop)


def test_a_prompt_longer_than_may_wait_is_let_in_when_nothing_waits() -> None:
    assert failure_of_next(AdmissionBounds(max_queued_tokens=1), 0) is None


def test_what_runs_waits_no_longer() -> None:
    bounds = AdmissionBounds(max_queued_tokens=PROMPT_TOKENS, max_queued_requests=1)
    cluster, router = make_cluster(bounds=bounds), Router()
    _, loop = join_worker(cluster)
    for handle in range(3):
        assert cluster.requests.add(make_group(handle, router))
        loop.turn()
    cluster.check()


def test_live_requests_of_a_tenant_are_bounded_and_others_are_not_touched() -> None:
    cluster, router = make_cluster(bounds=AdmissionBounds(max_tenant_requests=2)), Router()
    _, loop = join_worker(cluster)
    asked = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "")]
    groups = [make_group(handle, router, tenant=tenant) for handle, tenant in asked]
    added = [cluster.requests.add(group) for group in groups]
    assert added == [True, True, False, True, True]
    assert failure_of(router, 3) == (
        Code.RESOURCE_EXHAUSTED,
        "this tenant has 2 live requests, as many as may be",
        1.0,
    )
    loop.send()  # running ones count too
    assert not cluster.requests.add(make_group(6, router, tenant="a"))
    cluster.requests.abort(groups[0])
    assert cluster.requests.add(make_group(7, router, tenant="a"))
    cluster.check()
    finish(cluster, loop)
    assert not len(cluster.requests)


def test_an_id_is_unique_among_the_requests_of_a_tenant() -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster)
    for handle, tenant in enumerate(("a", "b", "a")):
        cluster.requests.add(make_group(handle, router, tenant=tenant, request_id="mine"))
    assert failure_of(router, 2)[0] is Code.ALREADY_EXISTS
    cluster.check()
    finish(cluster, loop)


@pytest.mark.parametrize("priority", [-1001, 1001])
def test_a_priority_that_no_router_of_ours_sends_is_refused(priority: int) -> None:
    cluster, router = make_cluster(), Router()
    join_worker(cluster)
    cluster.requests.add(make_group(1, router, priority=priority))
    code, message, _ = failure_of(router, 1)
    assert code is Code.INVALID_ARGUMENT
    assert message == f"priority is {priority}, must be in [-1000, 1000]"


class Moody(FirstComeFirstServed):
    def rank(self, group: SequenceGroup) -> float:
        return 1 / group.request.priority


def test_a_policy_that_fails_on_a_request_fails_that_request_alone() -> None:
    cluster, router = make_cluster(policy=Moody()), Router()
    _, loop = join_worker(cluster)
    for handle, priority in ((1, 2), (2, 0)):
        cluster.requests.add(make_group(handle, router, priority=priority))
    assert failure_of(router, 2)[:2] == (
        Code.INTERNAL,
        "the scheduling policy fails on this request",
    )
    finish(cluster, loop)
    assert router.ended[1].failure is None


# Deadlines


class Deadlined:
    """A cluster of a worker under pressure, with two requests; the second has a deadline."""

    def __init__(self, *, num_cpu_blocks: int) -> None:
        self.now = 0.0
        self.router = Router()
        self.cluster = make_cluster(
            policy=make_policy(PolicySettings(scheduling_policy="priority")), clock=lambda: self.now
        )
        self.engine, self.loop = join_worker(
            self.cluster, num_gpu_blocks=6, num_cpu_blocks=num_cpu_blocks
        )
        self.groups: list[SequenceGroup] = []
        for handle, deadline in ((1, None), (2, 5.0)):
            group = make_group(handle, self.router, max_tokens=16, deadline=deadline)
            assert self.cluster.requests.add(group)
            self.groups.append(group)

    @property
    def status(self) -> SequenceStatus:
        """Of the request with the deadline."""
        return self.groups[1].sequences[0].status

    def step(self) -> None:
        self.loop.send()
        if (outcome := self.loop.answer()) is not None:
            self.cluster.requests.send_updates(outcome)


def bring(case: Deadlined, state: str) -> None:
    match state:
        case "waiting":
            assert case.status is SequenceStatus.WAITING
        case "running":
            case.step()
            assert case.status is SequenceStatus.RUNNING
        case "in flight":
            case.loop.send()
            assert case.status is SequenceStatus.RUNNING
        case "swapped" | "preempted":
            while not case.engine.scheduler.preemption.num_preemptions:
                case.step()
            is_swapped = case.status is SequenceStatus.SWAPPED
            assert is_swapped if state == "swapped" else case.status is SequenceStatus.WAITING


@pytest.mark.parametrize("state", ["waiting", "running", "in flight", "swapped", "preempted"])
def test_a_deadline_ends_a_request_in_whatever_state_it_is(state: str) -> None:
    case = Deadlined(num_cpu_blocks=0 if state == "preempted" else 12)
    bring(case, state)
    case.now = 5.0
    case.cluster.requests.expire()
    case.cluster.check()
    assert failure_of(case.router, 2)[0] is Code.DEADLINE_EXCEEDED
    assert all_blocks_are_back(case.loop, except_of=case.groups[0])
    finish(case.cluster, case.loop)
    assert case.router.ended[1].failure is None
    assert not len(case.cluster.requests)


@pytest.mark.parametrize("state", ["swapped", "preempted"])
def test_a_request_that_ends_while_it_is_out_was_preempted_until_then(state: str) -> None:
    case = Deadlined(num_cpu_blocks=0 if state == "preempted" else 12)
    bring(case, state)
    since = case.groups[1].times.preempted_at
    assert since is not None
    case.now = since + 3.0
    case.cluster.requests.expire()
    assert case.router.ended[2].timings.preempted_ns == 3e9
    finish(case.cluster, case.loop)


def all_blocks_are_back(loop: Loop, *, except_of: SequenceGroup) -> bool:
    """Within two steps."""
    loop.turn(2)
    blocks = loop.scheduler.blocks
    held = sum(len(seq.block_table) for seq in except_of.unfinished)
    is_back = blocks.gpu.num_blocks - blocks.gpu.num_free == held
    return is_back and blocks.cpu.num_free == blocks.cpu.num_blocks
