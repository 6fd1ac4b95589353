"""Steps that fail half-way and take states of recurrent layers with them; the worker goes on."""

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.errors import Code
from signalbox_contract.request import BeamSearchParams
from signalbox_scheduler.requests.sequence_group import BeamGroup, SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import Loop, join_worker, make_arrival, make_cluster, outputs
from tests.scheduler_svc.routers import Router, finish

GROUPS = (FULL_GROUP, CacheGroup(kind="state", state_blocks=3))
POISON = 96


def make_with_states(*others: CacheGroup) -> tuple[Cluster, Router, Loop]:
    cluster = make_cluster()
    _, loop = join_worker(cluster, num_gpu_blocks=200, groups=(*others, *GROUPS), name="a")
    return cluster, Router(), loop


def ask(
    cluster: Cluster, router: Router, prompt: list[int], *, handle: int = 1, **fields: object
) -> SequenceGroup:
    group = make_arrival(
        prompt,
        reply_to=router,
        arrival=float(handle),
        handle=handle,
        request_id=f"r{handle}",
        **{"max_tokens": 12, **fields},
    )
    assert cluster.requests.add(group)
    return group


def step(cluster: Cluster, loop: Loop) -> int:
    """Sends a step and takes the oldest answer; returns the tokens of the step."""
    num_tokens = loop.scheduler.in_flight[-1].total_tokens if loop.send() else 0
    if (outcome := loop.answer()) is not None:
        cluster.requests.send_updates(outcome)
    cluster.check()
    return num_tokens


def test_states_that_a_step_lost_are_computed_from_the_last_snapshot() -> None:
    cluster, router, loop = make_with_states()
    group = ask(cluster, router, [1] * 42)
    num_computed = sum(step(cluster, loop) for _ in range(3))
    loop.send()  # the next one is planned before the worker says that it has failed
    loop.worker.fails_next = True
    while not group.is_finished:
        num_computed += step(cluster, loop)
    assert outputs(group) == [expected([1] * 42, num_tokens=12)]
    assert num_computed <= 42 + 12 + 4 + 2 * 2  # a row, and what was in flight
    kinds = [event.kind for event in group.timeline.events]
    assert kinds.count(EventKind.SUSPECTED) == kinds.count(EventKind.CLEARED) == 1
    assert cluster.worker_records.num_failures_of("a") == 1
    assert group.num_lost_workers == 0


def test_blocks_are_whole_while_a_step_behind_the_failed_one_is_in_flight() -> None:
    cluster, router, loop = make_with_states(CacheGroup(kind="window", window=6))
    group = ask(cluster, router, [1] * 19)
    loop.send()
    loop.send()  # of which the worker says as well that it has failed
    loop.worker.fails_next = True
    while not group.is_finished:
        step(cluster, loop)
    assert outputs(group) == [expected([1] * 19, num_tokens=12)]


@pytest.mark.parametrize(
    "fields", [{"num_sequences": 3}, {"beam_search": BeamSearchParams(width=3)}]
)
@pytest.mark.parametrize("num_steps", [0, 1, 2, 5])
def test_branches_and_beams_go_on_after_a_failed_step(
    fields: dict[str, object], num_steps: int
) -> None:
    cluster, router, loop = make_with_states()
    group = ask(cluster, router, [1] * 10, **fields)
    for _ in range(num_steps):
        step(cluster, loop)
    loop.worker.fails_next = True
    finish(cluster, loop)
    assert router.ended[1].failure is None
    if not isinstance(group, BeamGroup):
        assert outputs(group) == [
            expected([1] * 10, num_tokens=12, branch=branch) for branch in range(3)
        ]


def test_a_request_that_takes_states_with_it_ends_alone() -> None:
    cluster, router, loop = make_with_states()
    groups = [ask(cluster, router, [handle] * 9, handle=handle) for handle in (1, 2)]
    loop.worker.poison = POISON
    step(cluster, loop)
    ask(cluster, router, [POISON] * 9, handle=3)
    finish(cluster, loop)
    failure = router.ended[3].failure
    assert failure is not None
    assert failure.code is Code.INTERNAL
    assert failure.message == "3 steps failed while working on the request"
    for handle, group in enumerate(groups, start=1):
        assert outputs(group) == [expected([handle] * 9, num_tokens=12)]
    assert cluster.worker_records.num_failures_of("a") == 0


def test_a_request_may_be_aborted_before_its_state_is_given_up() -> None:
    cluster, router, loop = make_with_states()
    group = ask(cluster, router, [1] * 9)
    step(cluster, loop)
    loop.send()
    loop.send()
    loop.worker.fails_next = True
    step(cluster, loop)
    assert group.suspicion is not None
    cluster.requests.abort(group)
    finish(cluster, loop)
    assert loop.scheduler.blocks.gpu.num_free == 200
