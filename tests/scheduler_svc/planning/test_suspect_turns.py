"""Requests that compute alone after a loss, and what the verdict does to workers' records.

Workers are loops over the fake worker; a loss is `Cluster.leave` while steps are in flight.
"""

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.step_result import StepResult
from signalbox_contract.updates import RequestFailure
from signalbox_scheduler.requests import suspicion
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from signalbox_scheduler.requests.wait_accounting import WaitReason
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import Loop, join_worker, make_cluster, outputs
from tests.scheduler_svc.routers import Router, add_request, finish


def group_of(cluster: Cluster, handle: int) -> SequenceGroup:
    return next(group for group in cluster.requests.live_groups if group.request_id == f"r{handle}")


def step(cluster: Cluster, loop: Loop) -> list[str]:
    """Sends one step and takes its answer; returns the requests in it."""
    assert loop.send()
    requests = dict.fromkeys(seq.group.request_id for seq in loop.scheduler.in_flight[-1].seqs)
    outcome = loop.answer()
    assert outcome is not None
    cluster.requests.send_updates(outcome)
    cluster.check()
    return list(requests)


def lose(cluster: Cluster, engine: StepLoop) -> None:
    cluster.leave(engine)
    cluster.check()


def failures(cluster: Cluster, *names: str) -> list[int]:
    return [cluster.worker_records.num_failures_of(name) for name in names]


def make_with(**workers: int) -> tuple[Cluster, Router, dict[str, tuple[StepLoop, Loop]]]:
    """A cluster, a router, and workers of so many blocks by name."""
    cluster = make_cluster(worker_wait_s=100.0)
    joined = {
        name: join_worker(cluster, num_gpu_blocks=num_blocks, name=name)
        for name, num_blocks in workers.items()
    }
    return cluster, Router(), joined


def test_what_was_in_flight_computes_alone_until_it_has_passed_the_loss() -> None:
    cluster, router, workers = make_with(a=64)
    engine, loop = workers["a"]
    for handle in (1, 2):
        add_request(cluster, router, handle)
    for _ in range(3):  # prompt, then two tokens
        step(cluster, loop)
    loop.send()  # the third is in flight
    _, other = join_worker(cluster, name="b")
    lose(cluster, engine)
    for handle in (3, 4):
        add_request(cluster, router, handle)
    positions = {
        group.suspicion.position for group in cluster.requests.live_groups if group.suspicion
    }
    assert positions == {5 + 3}
    steps = [step(cluster, other) for _ in range(4)]
    assert steps == [["r1"], ["r1"], ["r2"], ["r1", "r2", "r3", "r4"]]
    finish(cluster, other)
    assert all(end.failure is None for end in router.ended.values())
    assert failures(cluster, "a", "b") == [1, 0]


@pytest.mark.parametrize("fields", [{"n": 3}, {"n": 2, "beam_search": BeamSearchParams(width=3)}])
def test_branches_and_beams_of_a_suspect_compute_alone_together(fields: dict[str, object]) -> None:
    cluster, router, workers = make_with(a=64)
    engine, loop = workers["a"]
    add_request(cluster, router, 1, **fields)  # type: ignore[arg-type]
    for _ in range(3):
        step(cluster, loop)
    loop.send()
    _, other = join_worker(cluster, name="b")
    lose(cluster, engine)
    add_request(cluster, router, 2)
    group = group_of(cluster, 1)
    finish(cluster, other)  # which asserts that the suspect is alone
    assert router.ended[1].failure is router.ended[2].failure is None
    kinds = [event.kind for event in group.timeline.events]
    assert kinds.count(EventKind.SUSPECTED) == kinds.count(EventKind.CLEARED) == 1
    if group.request.beam_search is None:
        assert outputs(group) == [expected([1] * 5, num_tokens=8, branch=i) for i in range(3)]


def test_a_request_that_was_not_in_a_step_in_flight_is_no_suspect() -> None:
    cluster, router = make_cluster(worker_wait_s=100.0), Router()
    engine, loop = join_worker(cluster, num_gpu_blocks=6, num_cpu_blocks=8, name="a")
    for handle in (1, 2):
        add_request(cluster, router, handle, max_tokens=16)
    while not loop.scheduler.swapped:
        step(cluster, loop)
    loop.send()
    lose(cluster, engine)
    assert [group.suspicion is not None for group in cluster.requests.live_groups] == [True, False]


def test_a_loss_with_nothing_in_flight_counts_against_the_worker_alone() -> None:
    cluster, router, workers = make_with(a=64)
    engine, loop = workers["a"]
    add_request(cluster, router, 1)
    step(cluster, loop)
    lose(cluster, engine)
    assert group_of(cluster, 1).suspicion is None
    assert failures(cluster, "a") == [1]


def test_a_suspect_shuns_the_worker_that_it_was_lost_on_while_another_takes_it() -> None:
    cluster, router, workers = make_with(a=64, b=64)
    engine, loop = workers["a"]
    add_request(cluster, router, 1)
    loop.send()
    lose(cluster, engine)
    again, back = join_worker(cluster, name="a")
    assert not back.send()  # though it waits
    lose(cluster, workers["b"][0])
    assert back.send()  # no other is left
    lose(cluster, again)
    assert not router.ended
    assert failures(cluster, "a", "b") == [1, 1]


def test_a_suspect_that_is_too_large_for_the_others_comes_back_to_its_worker() -> None:
    cluster, router, workers = make_with(a=64, b=4)
    engine, loop = workers["a"]
    add_request(cluster, router, 1, max_tokens=50)
    loop.send()
    lose(cluster, engine)
    _, back = join_worker(cluster, name="a")
    finish(cluster, back)
    assert router.ended[1].failure is None


def lose_with_suspect(cluster: Cluster, router: Router, *, times: int) -> Loop:
    """Loses workers with request 1 in flight: the first together with request 2, then alone."""
    engine, loop = join_worker(cluster, name="w0")
    for handle in (1, 2):
        add_request(cluster, router, handle)
    for number in range(1, times + 1):
        spare, spare_loop = join_worker(cluster, name=f"w{number}")
        while group_of(cluster, 1) not in loop.scheduler.running:
            assert loop.send()
        lose(cluster, engine)
        engine, loop = spare, spare_loop
    return loop


def test_a_suspect_that_is_lost_three_times_was_the_cause_and_no_worker_has_a_record() -> None:
    cluster, router, _ = make_with()
    loop = lose_with_suspect(cluster, router, times=suspicion.MAX_LOSSES)
    failure = router.ended[1].failure
    assert failure is not None
    assert failure.code is Code.INTERNAL
    assert failures(cluster, "w0", "w1", "w2") == [0, 0, 0]
    finish(cluster, loop)
    assert router.ended[2].failure is None  # it was in flight with it, and has passed


def test_a_suspect_that_passes_was_not_the_cause_of_the_losses_at_which_it_was_alone() -> None:
    cluster, router, _ = make_with()
    loop = lose_with_suspect(cluster, router, times=2)
    assert failures(cluster, "w0", "w1") == [1, 0]
    finish(cluster, loop)
    assert all(end.failure is None for end in router.ended.values())
    assert failures(cluster, "w0", "w1", "w2") == [1, 1, 0]


def test_a_suspect_that_a_worker_fails_to_compute_alone_was_the_cause() -> None:
    cluster, router, _ = make_with()
    loop = lose_with_suspect(cluster, router, times=1)
    while not loop.scheduler.in_flight:
        assert loop.send()
    plan = loop.scheduler.in_flight[0]
    assert plan.is_alone
    failure = RequestFailure(Code.INTERNAL, "logits are not finite")
    answer = StepResult(step_id=plan.step_id, failures={plan.seqs[0].seq_id: failure})
    cluster.requests.send_updates(loop.scheduler.update(answer, 0.0))
    assert router.ended[1].failure is not None
    assert failures(cluster, "w0") == [0]


def test_a_suspect_that_its_client_aborts_has_proven_nothing() -> None:
    cluster, router, _ = make_with()
    engine, loop = join_worker(cluster, name="w0")
    request = add_request(cluster, router, 1)
    assert request is not None
    loop.send()
    lose(cluster, engine)
    cluster.requests.abort(request)
    assert failures(cluster, "w0") == [1]


def test_those_who_wait_behind_a_suspect_are_told_so() -> None:
    cluster, router, workers = make_with(a=8)
    engine, loop = workers["a"]
    add_request(cluster, router, 1, max_tokens=20)
    loop.send()
    lose(cluster, engine)
    _, other = join_worker(cluster, num_gpu_blocks=8, name="b")
    other.send()
    add_request(cluster, router, 2, max_tokens=20)
    other.answer()
    other.send()
    since_ever = ((0.0, 0),) * len(WaitReason)
    waits = cluster.admission.waits.since(since_ever, 100.0)
    assert WaitReason.SUSPECT in {wait.reason for wait in waits}
