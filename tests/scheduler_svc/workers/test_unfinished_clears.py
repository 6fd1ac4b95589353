"""What was to be cleared from a server is cleared by workers that join, until one has done it."""

from typing import Any

import pytest

from contract.model import StoreCapacity
from scheduler_svc.cluster import Cluster
from scheduler_svc.workers.step_loop import StepLoop
from tests.scheduler_svc.make import Loop, join_worker, make_cluster, make_loop


def join(cluster: Cluster, kind: str = "shared") -> tuple[StepLoop, Loop]:
    options: dict[str, Any] = {"num_cpu_blocks": 16, "store": StoreCapacity(kind=kind)}
    steps, _ = join_worker(cluster, name=f"w{len(cluster.step_loops)}:1", **options)
    return steps, make_loop(steps.scheduler, kept={}, step_s=0.001)


def clears(loop: Loop) -> list[str | None]:
    """Has a worker do what it has to; returns the tenants that it clears."""
    tenants: list[str | None] = []
    while loop.send():
        if (moves := loop.scheduler.inflight[-1].store_moves) is not None:
            tenants += [one.tenant for one in moves.clears]
        loop.answer()
    loop.scheduler.check()
    return tenants


@pytest.mark.parametrize("tenant", ["team-a", None])
def test_a_worker_that_joins_makes_the_clear_of_one_that_was_lost(tenant: str | None) -> None:
    cluster = make_cluster()
    first, _ = join(cluster)
    faults: list[tuple[str, str]] = []
    cluster.clear_prefix_cache(tenant, lambda *one: faults.append(one))
    cluster.leave(first)
    assert faults == [("w0:1", "the worker has left")]
    second, loop = join(cluster)
    assert clears(loop) == [tenant]
    assert second.scheduler.store is not None
    assert not second.scheduler.store.moves
    _, loop = join(cluster)
    assert clears(loop) == []
    cluster.check()


def test_a_clear_that_one_worker_of_the_server_has_made_is_not_repeated() -> None:
    cluster = make_cluster()
    first, _ = join(cluster)
    _, loop = join(cluster)
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    assert clears(loop) == ["team-a"]
    cluster.leave(first)
    _, loop = join(cluster)
    assert clears(loop) == []


def test_a_clear_of_all_makes_those_of_tenants() -> None:
    cluster = make_cluster()
    first, _ = join(cluster)
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    cluster.leave(first)
    _, loop = join(cluster)
    cluster.clear_prefix_cache(None, lambda *_: None)
    assert clears(loop) == ["team-a", None]
    _, loop = join(cluster)
    assert clears(loop) == []


def test_what_a_worker_has_for_itself_is_not_cleared_for_the_sake_of_another() -> None:
    cluster = make_cluster()
    first, _ = join(cluster, "disk")
    cluster.clear_prefix_cache(None, lambda *_: None)
    cluster.leave(first)
    _, loop = join(cluster, "disk")
    assert clears(loop) == []
