"""Workers that join make the clears that a server, or files on their disk, may lack."""

from typing import Any

import pytest

from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import Clear, ClearMark
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.unfinished_clears import MAX_EARLIER, MAX_TENANTS
from tests.scheduler_svc.make import Loop, is_moving, join_worker, make_cluster, make_loop


def join(
    cluster: Cluster, kind: str = "shared", known: tuple[ClearMark, ...] = ()
) -> tuple[StepLoop, Loop]:
    store = StoreCapacity(kind=kind, clears=known)
    options: dict[str, Any] = {"num_cpu_blocks": 16, "store": store}
    steps, _ = join_worker(cluster, name=f"w{len(cluster.step_loops)}:1", **options)
    return steps, make_loop(steps.scheduler, kept={}, step_s=0.001)


def made(loop: Loop) -> list[Clear]:
    """Has a worker do what it has to; returns the clears that it makes."""
    clears: list[Clear] = []
    while loop.send():
        if (moves := loop.scheduler.in_flight[-1].store_moves) is not None:
            clears += moves.clears
        loop.answer()
    loop.scheduler.check()
    return clears


def clears(loop: Loop) -> list[str | None]:
    return [one.tenant for one in made(loop)]


def marks(loop: Loop) -> list[ClearMark]:
    return [one.mark for one in made(loop) if one.mark is not None]


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
    assert not is_moving(second.scheduler)
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


def test_a_worker_with_a_disk_is_told_of_the_clears_that_its_files_may_lack() -> None:
    cluster = make_cluster()
    first, _ = join(cluster, "disk")
    cluster.leave(first)
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    cluster.clear_prefix_cache(None, lambda *_: None)
    cluster.clear_prefix_cache("team-b", lambda *_: None)
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    cluster.clear_prefix_cache("team-b", lambda *_: None)
    for _ in range(2):  # another may have other files
        second, loop = join(cluster, "disk")
        assert clears(loop) == [None, "team-a", "team-b"]
        cluster.leave(second)
    cluster.check()


def test_a_clear_has_the_same_mark_when_it_is_repeated_and_another_in_another_scheduler() -> None:
    cluster = make_cluster()
    first, loop = join(cluster, "disk")
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    (mark,) = marks(loop)
    cluster.leave(first)
    _, loop = join(cluster, "disk")
    assert marks(loop) == [mark]
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    (later,) = marks(loop)
    assert (later.issuer, later.number) == (mark.issuer, mark.number + 1)
    other = make_cluster()
    _, loop = join(other, "disk")
    other.clear_prefix_cache("team-a", lambda *_: None)
    assert marks(loop)[0].issuer != mark.issuer


def test_clears_of_very_many_tenants_are_remembered_as_one_of_all() -> None:
    cluster = make_cluster()
    for number in range(MAX_TENANTS):
        cluster.clear_prefix_cache(f"team-{number}", lambda *_: None)
    first, loop = join(cluster, "disk")
    assert len(clears(loop)) == MAX_TENANTS
    cluster.clear_prefix_cache("one more", lambda *_: None)
    assert clears(loop) == ["one more"]
    cluster.leave(first)
    _, loop = join(cluster, "disk")
    assert clears(loop) == [None]
    cluster.check()


def test_a_worker_without_a_store_that_outlives_it_is_told_of_no_clear() -> None:
    cluster = make_cluster()
    cluster.clear_prefix_cache(None, lambda *_: None)
    _, loop = join(cluster, "memory")
    assert clears(loop) == []


def test_workers_catch_up_with_the_clears_of_earlier_schedulers_that_another_knows() -> None:
    one, two = b"one".ljust(16), b"two".ljust(16)
    cluster = make_cluster()
    _, first = join(cluster, "disk", (ClearMark(one, 3),))
    assert marks(first) == [ClearMark(one, 3, catches_up=True)]
    _, server = join(cluster, "shared")
    _, second = join(cluster, "disk", (ClearMark(one, 2), ClearMark(two, 5)))
    assert marks(first) == [ClearMark(two, 5, catches_up=True)]
    assert marks(second) == [ClearMark(one, 3, True), ClearMark(two, 5, True)]
    assert marks(server) == []
    cluster.check()


def test_a_worker_that_comes_back_tells_its_scheduler_nothing_new() -> None:
    cluster = make_cluster()
    _, stays = join(cluster, "disk")
    first, loop = join(cluster, "disk")
    cluster.clear_prefix_cache("team-a", lambda *_: None)
    (mark,) = marks(loop)
    assert marks(stays) == [mark]
    cluster.leave(first)
    _, loop = join(cluster, "disk", (mark,))
    assert marks(loop) == [mark]
    assert marks(stays) == []
    cluster.check()


def test_of_earlier_schedulers_the_last_ones_are_remembered() -> None:
    cluster = make_cluster()
    for number in range(MAX_EARLIER + 3):
        _, loop = join(cluster, "disk", (ClearMark(bytes([number]) * 16, 1),))
    assert [one.issuer[0] for one in marks(loop)] == list(range(3, MAX_EARLIER + 3))
