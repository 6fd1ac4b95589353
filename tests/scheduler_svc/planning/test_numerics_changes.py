"""Requests that go on at a worker with other numerics are counted, and named in one line."""

import logging
from dataclasses import replace

import pytest

from signalbox_contract.model import Numerics
from signalbox_contract.request import DeliveredSequence
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from tests.scheduler_svc.make import join_worker, make_arrival, make_cluster
from tests.scheduler_svc.routers import Router, add_request, finish

AMX = Numerics(factors="int8", kernels="native amx", kv_cache_dtype="bfloat16")
AVX2 = Numerics(factors="int8", kernels="native avx2", kv_cache_dtype="float32")


def move_requests(
    cluster: Cluster, before: Numerics | None, after: Numerics | None, *, num_steps: int = 3
) -> Scheduler:
    """Loses a worker that has two requests; returns the scheduler of the one that finishes them."""
    router = Router()
    first, loop = join_worker(cluster, name="a", numerics=before)
    for handle in range(2):
        add_request(cluster, router, handle, max_tokens=9)
    loop.turn(num_steps)
    _, other = join_worker(cluster, name="b", numerics=after)
    cluster.leave(first)
    finish(cluster, other)
    assert all(router.ended[handle].failure is None for handle in range(2))
    return other.scheduler


def test_requests_with_tokens_of_other_numerics_are_counted() -> None:
    scheduler = move_requests(make_cluster(), AMX, AVX2)
    assert scheduler.planner.numerics_changes.num_requests == 2


@pytest.mark.parametrize("field", ["factors", "kernels", "kv_cache_dtype"])
def test_each_part_of_the_numerics_counts(field: str) -> None:
    scheduler = move_requests(make_cluster(), AMX, replace(AMX, **{field: "other"}))
    assert scheduler.planner.numerics_changes.num_requests == 2


@pytest.mark.parametrize(("before", "after"), [(AMX, AMX), (None, AMX), (AMX, None), (None, None)])
def test_equal_and_unknown_ones_are_not_counted(
    before: Numerics | None, after: Numerics | None
) -> None:
    scheduler = move_requests(make_cluster(), before, after)
    assert scheduler.planner.numerics_changes.num_requests == 0


def test_requests_without_a_token_are_not_counted() -> None:
    scheduler = move_requests(make_cluster(), AMX, AVX2, num_steps=0)
    assert scheduler.planner.numerics_changes.num_requests == 0


def test_one_line_names_both_for_many_requests(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        move_requests(make_cluster(), AMX, AVX2)
    (line,) = (line for line in caplog.messages if "other numerics" in line)
    assert f"on b {AVX2}" in line
    assert f"before {AMX}" in line


@pytest.mark.parametrize(
    ("before", "after", "num_steps", "said"),
    [
        ("one", "one", 3, "one"),
        ("one", "other", 3, ""),
        ("one", "", 3, ""),
        ("one", "other", 0, "other"),  # there is no token that the first has drawn
    ],
)
def test_the_end_names_the_arithmetic_of_all_tokens(
    before: str, after: str, num_steps: int, said: str
) -> None:
    cluster, router = make_cluster(), Router()
    first, loop = join_worker(cluster, name="a", arithmetic=before)
    add_request(cluster, router, 0, max_tokens=9)
    loop.turn(num_steps)
    second, loop = join_worker(cluster, name="b", arithmetic=after)
    cluster.leave(first)
    if num_steps and after != before:  # what has gone back is still drawn by two
        loop.turn(3)
        _, loop = join_worker(cluster, name="c", arithmetic=before)
        cluster.leave(second)
    finish(cluster, loop)
    assert router.ended[0].arithmetic == said


def test_a_request_that_goes_on_after_another_scheduler_names_none() -> None:
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster, name="a", arithmetic="one")
    delivered = (DeliveredSequence([5, 6], None),)
    group = make_arrival([1, 2], reply_to=router, handle=0, attempt=1, delivered=delivered)
    assert cluster.requests.add(group)
    finish(cluster, loop)
    assert router.ended[0].arithmetic == ""
