"""Requests that a router sends again with what it has had go on as if nothing had happened."""

import dataclasses
import random

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.request import DeliveredSequence
from signalbox_contract.updates import FinishReason
from signalbox_scheduler.config import AdmissionBounds
from signalbox_scheduler.requests.request_validation import find_fault
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.fake_worker import VOCAB_SIZE, expected
from tests.scheduler_svc.make import MODEL, join_worker, make_arrival, make_cluster, outputs
from tests.scheduler_svc.routers import Router, add_request, failure_of, finish

PROMPT = [3] * 10
GOES_ON = None


def make_resumed(
    *lengths: int,
    ended: dict[int, FinishReason] | None = None,
    max_tokens: int = 12,
    **fields: object,
) -> SequenceGroup:
    """A request of which so many tokens of each branch were delivered."""
    delivered = [
        DeliveredSequence(
            expected(PROMPT, num_tokens=length, branch=branch), (ended or {}).get(branch)
        )
        for branch, length in enumerate(lengths)
    ]
    settings = {"request_id": "r", "attempt": 1, "nonce": 5, "num_sequences": max(1, len(lengths))}
    return make_arrival(PROMPT, max_tokens=max_tokens, delivered=delivered, **settings | fields)


def add(cluster: Cluster, group: SequenceGroup, router: Router, handle: int = 1) -> bool:
    group.reply_to = router
    group.request = dataclasses.replace(group.request, handle=handle)
    return cluster.requests.add(group)


@pytest.mark.parametrize("num_gpu_blocks", [64, 14])  # and with preemption
@pytest.mark.parametrize("lengths", [(), (1,), (11,), (5, 1, 8), (2, 2)])
def test_what_was_delivered_is_computed_and_continued(
    lengths: tuple[int, ...], num_gpu_blocks: int
) -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster, num_gpu_blocks=num_gpu_blocks)
    group = make_resumed(*lengths)
    assert add(cluster, group, router)
    add_request(cluster, router, 2, max_tokens=20)
    finish(cluster, loop)
    assert router.ended[1].failure is None
    assert outputs(group) == [
        expected(PROMPT, num_tokens=12, branch=branch) for branch in range(max(1, len(lengths)))
    ]
    assert not len(cluster.requests)
    cluster.check()


def test_ended_branches_stay_as_they_are() -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster)
    group = make_resumed(4, 6, 5, ended={0: FinishReason.STOP_STRING, 2: FinishReason.ERROR})
    assert add(cluster, group, router)
    finish(cluster, loop)
    assert [len(tokens) for tokens in outputs(group)] == [4, 12, 5]
    assert [seq.finish_reason for seq in group.sequences] == [
        FinishReason.STOP_STRING,
        FinishReason.LENGTH,
        FinishReason.ERROR,
    ]
    cluster.check()


def test_a_later_attempt_takes_the_place_of_an_earlier_one() -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster)
    earlier = make_resumed(attempt=0)
    assert add(cluster, earlier, router, 1)
    loop.send()
    later = make_resumed(3)
    assert add(cluster, later, router, 2)
    cluster.check()
    finish(cluster, loop)
    assert outputs(later) == [expected(PROMPT, num_tokens=12)]
    assert router.ended.keys() == {2}, "nobody listens to the earlier attempt"
    assert loop.scheduler.blocks.gpu.num_free == 64


@pytest.mark.parametrize("fields", [{"nonce": 6}, {"attempt": 0}, {"attempt": 1}])
def test_no_other_request_takes_the_place_of_one_that_lives(fields: dict[str, int]) -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster)
    assert add(cluster, make_resumed(attempt=1), router, 1)
    assert not add(cluster, make_resumed(**{"attempt": 2} | fields), router, 2)
    assert failure_of(router, 2)[0] is Code.ALREADY_EXISTS
    finish(cluster, loop)
    assert router.ended[1].failure is None


def test_no_bound_of_the_queue_refuses_what_was_admitted_before() -> None:
    cluster, router = make_cluster(bounds=AdmissionBounds(max_queued_requests=1)), Router()
    _, loop = join_worker(cluster)
    add_request(cluster, router, 2)
    assert add(cluster, make_resumed(3), router, 1)
    assert add_request(cluster, router, 3) is None
    finish(cluster, loop)
    assert router.ended[1].failure is None
    cluster.check()


@pytest.mark.parametrize(
    "changes",
    [
        {"num_sequences": 3},
        {"attempt": 0},
        {"delivered": [DeliveredSequence([], GOES_ON)] * 2},
        {"delivered": [DeliveredSequence([1] * 13, FinishReason.LENGTH)] * 2},
        {"delivered": [DeliveredSequence([1] * 12, GOES_ON)] * 2},
        {"delivered": [DeliveredSequence([1], FinishReason.STOP)] * 2},
        {"delivered": [DeliveredSequence([VOCAB_SIZE], GOES_ON)] * 2},
        {"delivered": [DeliveredSequence([-1], GOES_ON)] * 2},
    ],
)
def test_what_no_router_of_ours_has_had_is_refused(changes: dict[str, object]) -> None:
    group = make_resumed(2, 2)
    assert find_fault(group.request, MODEL) is None
    changed = dataclasses.replace(group.request, **changes)  # type: ignore[arg-type]
    fault = find_fault(changed, MODEL)
    assert fault is not None
    assert fault.startswith("delivered")


def make_random(rng: random.Random, handle: int) -> tuple[SequenceGroup, list[list[int]]]:
    """A request, new or resumed, and what its branches must have in the end."""
    n, max_tokens = rng.choice([1, 1, 2, 3]), rng.randrange(2, 14)
    prompt = [rng.randrange(5) for _ in range(rng.randrange(1, 14))]
    whole = [expected(prompt, num_tokens=max_tokens, branch=branch) for branch in range(n)]
    is_resumed, delivered = rng.random() < 0.7, []
    for branch in range(n if is_resumed and rng.random() < 0.8 else 0):
        length = rng.randrange(1, max_tokens)
        has_ended = branch > 0 and rng.random() < 0.3
        reason = FinishReason.STOP_STRING if has_ended else GOES_ON
        delivered.append(DeliveredSequence(whole[branch][:length], reason))
        whole[branch] = whole[branch][: length if has_ended else max_tokens]
    group = make_arrival(
        prompt,
        arrival=float(handle),
        request_id=f"r{handle}",
        max_tokens=max_tokens,
        num_sequences=n,
        attempt=int(is_resumed),
        delivered=delivered,
    )
    return group, whole


@pytest.mark.parametrize("seed", range(8))
def test_resumed_requests_beside_others_under_pressure_while_workers_come_and_go(seed: int) -> None:
    rng, router = random.Random(seed), Router()
    cluster = make_cluster(worker_wait_s=1.0)  # of a clock that stands still
    workers = [join_worker(cluster, num_gpu_blocks=20, num_cpu_blocks=8) for _ in range(2)]
    asked = {}
    for step in range(250):
        if step % 12 == 0:
            group, whole = make_random(rng, step)
            if add(cluster, group, router, step):
                asked[step] = group, whole
        if step % 60 == 59:
            engine, _ = workers.pop(0)
            if rng.random() < 0.5:
                cluster.drain(engine)
            cluster.leave(engine)
            cluster.check()
            workers.append(join_worker(cluster, num_gpu_blocks=rng.choice([14, 40])))
        _, loop = rng.choice(workers)
        loop.send()
        if rng.random() < 0.7 and (outcome := loop.answer()) is not None:
            cluster.requests.send_updates(outcome)
    workers.append(join_worker(cluster, num_gpu_blocks=80))
    while len(cluster.requests):
        for _, loop in workers:
            finish(cluster, loop)
    for handle, (group, whole) in asked.items():
        assert router.ended[handle].failure is None
        assert outputs(group) == whole
    cluster.check()
