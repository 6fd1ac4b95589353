"""Accepted requests that no worker takes wait for one that does, within a bound."""

import dataclasses

from signalbox_contract.errors import Code
from signalbox_scheduler.workers.cluster import Cluster
from tests.clock import Clock
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import MODEL, Loop, join_worker, make_cluster, outputs
from tests.scheduler_svc.routers import Router, add_request, failure_of, finish, turn
from tests.scheduler_svc.test_resumed_requests import add, make_resumed

WAIT_S = 30.0


def make_waiting(clock: Clock) -> Cluster:
    return make_cluster(clock=clock, worker_wait_s=WAIT_S)


def run_steps(cluster: Cluster, loop: Loop, count: int) -> None:
    for _ in range(count):
        turn(cluster, loop)


def test_requests_of_the_last_worker_go_on_at_the_next() -> None:
    clock, router = Clock(), Router()
    cluster = make_waiting(clock)
    engine, loop = join_worker(cluster)
    requests = [add_request(cluster, router, handle, n=handle) for handle in (1, 2)]
    run_steps(cluster, loop, 4)
    waiting = add_request(cluster, router, 3)  # accepted, and no worker has worked on it
    cluster.leave(engine)
    cluster.check()
    assert cluster.requests.has_deadlines, "somebody must look when their time is up"
    clock.now = WAIT_S - 1
    cluster.requests.expire()
    assert add_request(cluster, router, 4) is None
    assert failure_of(router, 4) == (Code.UNAVAILABLE, "no worker serves", 1.0)
    _, another = join_worker(cluster)
    assert not cluster.requests.has_deadlines
    clock.now = WAIT_S + 1
    finish(cluster, another)
    for group in (*requests, waiting):
        assert group is not None
        prompt, n = group.request.prompt_token_ids, group.request.num_sequences
        assert router.ended[group.request.handle].failure is None
        assert outputs(group) == [
            expected(prompt, num_tokens=8, branch=branch) for branch in range(n)
        ]
    assert not len(cluster.requests)


def test_who_has_waited_long_enough_is_told_to_come_again() -> None:
    clock, router = Clock(), Router()
    cluster = make_waiting(clock)
    engine, loop = join_worker(cluster)
    for handle in range(2000):  # all of them end at once, and none in another's call
        add_request(cluster, router, handle, deadline=WAIT_S if handle % 2 else None)
    run_steps(cluster, loop, 3)
    cluster.leave(engine)
    clock.now = WAIT_S
    cluster.requests.expire()
    assert len(router.ended) == 2000
    assert failure_of(router, 0) == (
        Code.UNAVAILABLE,
        "no worker serves, and none joined within 30 s",
        1.0,
    )
    assert failure_of(router, 1)[0] is Code.DEADLINE_EXCEEDED
    cluster.check()
    assert not len(cluster.requests)
    assert not cluster.requests.has_deadlines


def test_a_request_too_large_for_those_who_are_left_waits_and_others_pass_it() -> None:
    clock, router = Clock(), Router()
    cluster = make_waiting(clock)
    large, large_loop = join_worker(cluster)
    add_request(cluster, router, 1, max_tokens=50)
    run_steps(cluster, large_loop, 3)
    _, small = join_worker(cluster, num_gpu_blocks=4)
    cluster.drain(large)
    cluster.leave(large)
    cluster.check()
    add_request(cluster, router, 2)
    finish(cluster, small)
    assert router.ended[2].failure is None
    assert 1 not in router.ended
    _, another = join_worker(cluster)
    finish(cluster, another)
    assert router.ended[1].failure is None


def test_an_abort_of_a_request_that_waits_leaves_nothing() -> None:
    clock, router = Clock(), Router()
    cluster = make_waiting(clock)
    engine, _ = join_worker(cluster)
    request = add_request(cluster, router, 1)
    assert request is not None
    cluster.leave(engine)
    cluster.requests.abort(request)
    cluster.check()
    assert not len(cluster.requests)
    assert not cluster.requests.has_deadlines


def test_workers_of_another_model_do_not_go_on_with_requests() -> None:
    clock, router = Clock(), Router()
    cluster = make_waiting(clock)
    engine, _ = join_worker(cluster)
    add_request(cluster, router, 1)
    cluster.leave(engine)
    cluster.serve(MODEL)
    assert not router.ended
    cluster.serve(dataclasses.replace(MODEL, dtype="bfloat16"))
    assert failure_of(router, 1)[0] is Code.UNAVAILABLE
    assert not len(cluster.requests)


def test_a_resumed_request_waits_for_a_worker_that_is_not_there_yet() -> None:
    clock, router = Clock(), Router()
    cluster = make_waiting(clock)
    join_worker(cluster, num_gpu_blocks=4)
    group = make_resumed(5)
    assert add(cluster, group, router)
    cluster.check()
    _, large = join_worker(cluster)
    finish(cluster, large)
    assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=12)]
    assert router.ended[1].failure is None
