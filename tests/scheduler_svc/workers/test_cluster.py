"""Which requests live on when workers go, and how the others end."""

from dataclasses import replace

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.request import BeamSearchParams
from signalbox_scheduler.queue.policies import FirstComeFirstServed
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.suspicion import MAX_LOSSES
from tests.scheduler_svc.make import (
    MODEL,
    join_worker,
    make_cluster,
)
from tests.scheduler_svc.routers import Router, add_request, failure_of, finish, turn


class Faulty(FirstComeFirstServed):
    """Fails where a request of the tenant `bad` is served; all stand in one flow."""

    def __init__(self, *, served: str, answer: object) -> None:
        self._served = served
        self._answer = answer

    def cost(self, flow: str, *, num_prompt_tokens: int, num_output_tokens: int) -> float:
        num_tokens = num_prompt_tokens if self._served == "prompt" else num_output_tokens
        if flow != "bad" or not num_tokens:
            return 0.0
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    def flow(self, group: SequenceGroup) -> str:
        return group.request.tenant


@pytest.mark.parametrize("served", ["prompt", "output"])
@pytest.mark.parametrize("answer", [ZeroDivisionError("no tokens"), "much", None])
@pytest.mark.parametrize(("n", "width"), [(1, 0), (3, 0), (2, 4)])
def test_a_request_whose_cost_the_policy_cannot_say_fails_alone(
    served: str, answer: object, n: int, width: int
) -> None:
    cluster, router = make_cluster(policy=Faulty(served=served, answer=answer)), Router()
    _, loop = join_worker(cluster)
    search = BeamSearchParams(width=width) if width else None
    for handle, tenant in enumerate(["good", "bad", "good"]):
        add_request(cluster, router, handle, n=n, tenant=tenant, beam_search=search)
    finish(cluster, loop)
    code, message, _ = failure_of(router, 1)
    assert code is Code.INTERNAL
    assert message == "the scheduling policy fails on this request"
    assert router.ended[0].failure is router.ended[2].failure is None
    assert not len(cluster.requests)
    cluster.check()
    assert loop.scheduler.blocks.gpu.num_free == 64


def test_a_flow_that_is_no_name_fails_its_request_alone() -> None:
    class Unnamed(FirstComeFirstServed):
        def flow(self, group: SequenceGroup) -> str:
            return [] if group.request.tenant == "bad" else ""  # type: ignore[return-value]

    cluster, router = make_cluster(policy=Unnamed()), Router()
    _, loop = join_worker(cluster)
    add_request(cluster, router, 0)
    assert add_request(cluster, router, 1, tenant="bad") is None
    assert failure_of(router, 1)[0] is Code.INTERNAL
    finish(cluster, loop)
    assert router.ended[0].failure is None
    cluster.check()


def test_workers_that_announce_their_leave_are_not_held_against_a_request() -> None:
    cluster, router = make_cluster(), Router()
    engine, loop = join_worker(cluster)
    add_request(cluster, router, 1)
    for _ in range(MAX_LOSSES):
        loop.send()
        spare, spare_loop = join_worker(cluster)
        cluster.drain(engine)
        cluster.leave(engine)
        engine, loop = spare, spare_loop
    finish(cluster, loop)
    assert router.ended[1].failure is None


def test_requests_that_wait_end_when_the_only_worker_drains_and_others_finish() -> None:
    cluster, router = make_cluster(), Router()
    engine, loop = join_worker(cluster, num_gpu_blocks=6)
    add_request(cluster, router, 1)
    loop.send()
    add_request(cluster, router, 2)
    cluster.drain(engine)
    cluster.check()
    assert failure_of(router, 2) == (Code.UNAVAILABLE, "no worker serves", 1.0)
    assert add_request(cluster, router, 3) is None
    assert failure_of(router, 3)[0] is Code.UNAVAILABLE
    finish(cluster, loop)
    assert router.ended[1].failure is None
    assert not engine.scheduler.has_unfinished


def test_requests_that_wait_stay_when_another_worker_takes_them() -> None:
    cluster, router = make_cluster(), Router()
    engine, _ = join_worker(cluster)
    _, other = join_worker(cluster)
    add_request(cluster, router, 1)
    cluster.drain(engine)
    assert not router.ended
    finish(cluster, other)
    assert router.ended[1].failure is None


def test_a_request_that_only_a_draining_worker_could_hold_is_refused() -> None:
    cluster, router = make_cluster(), Router()
    large, _ = join_worker(cluster)
    join_worker(cluster, num_gpu_blocks=4)
    add_request(cluster, router, 1, max_tokens=50)
    cluster.drain(large)
    assert failure_of(router, 1) == (
        Code.UNAVAILABLE,
        "no worker that is left has room for 5 prompt tokens and 50 more",
        1.0,
    )
    assert not len(cluster.requests)


def test_a_preempted_request_waits_for_the_draining_worker_that_had_it() -> None:
    cluster, router = make_cluster(), Router()
    engine, loop = join_worker(cluster, num_gpu_blocks=6)
    for handle in (1, 2):
        add_request(cluster, router, handle, max_tokens=16)
    while not engine.scheduler.preemption.num_preemptions:
        turn(cluster, loop)
    assert len(cluster.admission) == 1
    cluster.drain(engine)
    finish(cluster, loop)
    assert [router.ended[handle].failure for handle in (1, 2)] == [None, None]


def test_a_worker_looks_past_a_request_of_more_branches_than_its_steps_hold() -> None:
    cluster, router = make_cluster(), Router()
    _, narrow = join_worker(cluster, max_num_seqs=2)
    _, wide = join_worker(cluster)
    add_request(cluster, router, 1, n=3)
    add_request(cluster, router, 2)
    finish(cluster, narrow)
    assert router.ended.keys() == {2}
    finish(cluster, wide)
    assert router.ended[1].failure is None


def test_requests_out_of_time_end_wherever_they_are_and_others_go_on() -> None:
    now = [0.0]
    cluster, router = make_cluster(clock=lambda: now[0]), Router()
    engine, loop = join_worker(cluster)
    for handle, deadline in ((1, 5.0), (2, None)):
        add_request(cluster, router, handle, deadline=deadline)
    loop.send()  # holds the first when its time is up
    add_request(cluster, router, 3, deadline=5.0)
    now[0] = 5.0
    cluster.requests.expire()
    cluster.check()
    assert [failure_of(router, handle)[0] for handle in (1, 3)] == [
        Code.DEADLINE_EXCEEDED,
        Code.DEADLINE_EXCEEDED,
    ]
    finish(cluster, loop)
    assert router.ended[2].failure is None
    assert engine.scheduler.blocks.gpu.num_free == engine.scheduler.blocks.gpu.num_blocks


def test_a_deadline_that_passes_while_a_worker_leaves_ends_a_request_once() -> None:
    now = [0.0]
    cluster, router = make_cluster(clock=lambda: now[0]), Router()
    engine, _ = join_worker(cluster)
    add_request(cluster, router, 1)
    add_request(cluster, router, 2, deadline=5.0)
    now[0] = 5.0
    cluster.leave(engine)
    assert failure_of(router, 1)[0] is Code.UNAVAILABLE
    assert failure_of(router, 2)[0] is Code.DEADLINE_EXCEEDED
    assert not len(cluster.requests)


def test_a_branch_is_stopped_while_its_request_waits_to_be_recomputed() -> None:
    cluster, router = make_cluster(), Router()
    engine, loop = join_worker(cluster)
    request = add_request(cluster, router, 1)
    assert request is not None
    for _ in range(3):
        turn(cluster, loop)
    join_worker(cluster)
    cluster.leave(engine)
    cluster.requests.stop_sequence(request, index=0, keep_tokens=2)
    assert router.ended[1].failure is None
    assert router.ended[1].usage.completion_tokens == 2
    cluster.check()
    assert not len(cluster.requests)


def test_what_the_workers_were_started_with_is_known_while_one_is_there() -> None:
    cluster = make_cluster()
    cluster.serve(replace(MODEL, started_as=("org/name",)))
    steps, _ = join_worker(cluster, name="a")
    cluster.serve(replace(MODEL, started_as=("/m/name.gguf",)))
    assert cluster.model is not None
    assert cluster.model.started_as == ("org/name", "/m/name.gguf")
    cluster.leave(steps)
    cluster.serve(replace(MODEL, started_as=("/m/name.gguf",)))
    assert cluster.model.started_as == ("/m/name.gguf",)
