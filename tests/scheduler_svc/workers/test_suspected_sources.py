"""What findings of audits take out of use: a store, blocks of a worker, a worker."""

from collections.abc import Sequence
from typing import Any

import pytest

from signalbox_contract.model import StoreCapacity
from signalbox_scheduler.audits.finding import AuditFinding, AuditSource, TokenBits
from signalbox_scheduler.config import PeerIdentity
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.quarantine import FORGET_S
from signalbox_scheduler.workers.suspected_sources import SuspectedSources
from tests.clock import Clock
from tests.scheduler_svc.make import join_worker, make_cluster, transfers
from tests.scheduler_svc.routers import Router, add_request, finish


class Suspected:
    """Workers of a cluster, and findings about them."""

    def __init__(self, num_workers: int = 2, *, store: str = "", **fields: Any) -> None:
        self.clock = Clock(1000.0)
        self.cluster: Cluster = make_cluster(clock=self.clock)
        self.sources = SuspectedSources(
            step_loops=self.cluster.step_loops,
            peers=self.cluster.peers,
            worker_records=self.cluster.worker_records,
            drain=self.cluster.drain,
            clock=self.clock,
        )
        self.loops = [self.join(number, store) for number in range(num_workers)]

    def join(self, number: int, store: str) -> Any:
        identity = PeerIdentity(address=f"w{number}:1", kv_format="one")
        capacity = StoreCapacity(kind=store) if store else None
        fields: dict[str, Any] = {"identity": identity, "num_cpu_blocks": 20, "store": capacity}
        return join_worker(self.cluster, **fields)[1]

    def find(
        self,
        source: AuditSource,
        suspect: str = "w0:1",
        *,
        answered_by: Sequence[str] = ("w0:1",),
        audited_by: str = "w0:1",
    ) -> None:
        finding = AuditFinding(
            request_id="r",
            branch=0,
            position=3,
            answered=TokenBits(5, 0),
            audited=TokenBits(6, 0),
            answered_by=tuple(answered_by),
            audited_by=audited_by,
            source=source,
            suspect=suspect,
            history="ran on one worker",
            at=self.clock(),
        )
        self.sources.take(finding)
        self.cluster.check()

    @property
    def unread_stores(self) -> list[bool]:
        return [transfers(loop.scheduler).loading.avoids_store for loop in self.loops]

    @property
    def unread_peers(self) -> list[bool]:
        return [transfers(loop.scheduler).peer.endpoint.is_avoided for loop in self.loops]

    @property
    def draining(self) -> list[bool]:
        return [loop.is_draining for loop in self.cluster.step_loops]

    @property
    def num_avoided(self) -> dict[str, float]:
        samples = [(one.labels["source"], one.value) for one in self.sources.samples()]
        return {source: value for source, value in samples if isinstance(value, int) and value}


def test_the_second_finding_ends_the_use_of_a_disk() -> None:
    case = Suspected(store="disk")
    case.find(AuditSource.STORE, "disk")
    assert case.unread_stores == [False, False]
    case.find(AuditSource.STORE, "disk", answered_by=["w1:1"])  # which has another
    assert case.unread_stores == [False, False]
    case.find(AuditSource.STORE, "disk")
    assert case.unread_stores == [True, False]
    assert case.num_avoided == {"store": 1}
    assert not any(case.draining)


def test_an_answer_of_two_workers_makes_the_disks_of_both_suspected() -> None:
    case = Suspected(3, store="disk")
    case.find(AuditSource.STORE, "disk", answered_by=["w0:1", "w1:1"])
    case.find(AuditSource.STORE, "disk", answered_by=["w1:1", "w2:1"])
    assert case.unread_stores == [False, True, False]
    assert case.num_avoided == {"store": 1}


def test_a_store_that_workers_share_is_read_by_none() -> None:
    case = Suspected(store="shared")
    case.find(AuditSource.STORE, "shared")
    case.find(AuditSource.STORE, "shared", answered_by=["w1:1"])
    assert case.unread_stores == [True, True]


@pytest.mark.parametrize(
    ("source", "suspect", "answered_by"),
    [
        (AuditSource.PEER, "w2:1", ["w0:1"]),
        (AuditSource.MIGRATION, "w0:1", ["w2:1", "w0:1"]),  # from the first to the second
    ],
)
def test_the_second_finding_ends_reads_of_a_worker(
    source: AuditSource, suspect: str, answered_by: list[str]
) -> None:
    case = Suspected(3)
    case.find(source, suspect, answered_by=answered_by)
    assert not any(case.unread_peers)
    case.find(AuditSource.PEER, "w2:1", answered_by=["w1:1"])
    assert case.unread_peers == [False, False, True]
    assert not any(case.draining)
    case.cluster.leave(case.cluster.step_loops[2])
    case.loops[2] = case.join(2, "")
    assert not any(case.unread_peers), "it has joined again"


@pytest.mark.parametrize("source", [AuditSource.SWAP, AuditSource.WORKER])
def test_the_second_finding_drains_a_worker_and_puts_it_on_record(source: AuditSource) -> None:
    case = Suspected()
    case.find(source)
    assert case.draining == [False, False]
    case.find(source)
    assert case.draining == [True, False]
    assert case.cluster.worker_records.num_failures_of("w0:1") == 2
    assert case.num_avoided == {"worker": 1}


@pytest.mark.parametrize(
    ("source", "store"),
    [(AuditSource.WORKER, ""), (AuditSource.PEER, ""), (AuditSource.STORE, "disk")],
)
def test_a_worker_that_has_left_is_not_taken_out_of_use(source: AuditSource, store: str) -> None:
    case = Suspected(3, store=store)
    suspect = "disk" if store else "w0:1"
    case.find(source, suspect)
    case.cluster.leave(case.cluster.step_loops[0])
    case.find(source, suspect)
    assert case.draining == [False, False]
    assert not case.num_avoided
    case.join(0, store)
    case.find(source, suspect)
    assert sum(case.num_avoided.values()) == 1, "it has two findings before"


def test_a_worker_is_drained_once() -> None:
    case = Suspected()
    for _ in range(5):
        case.find(AuditSource.WORKER)
    assert case.draining == [True, False]
    assert case.num_avoided == {"worker": 1}


def test_the_last_worker_goes_on() -> None:
    case = Suspected(1)
    for _ in range(3):
        case.find(AuditSource.WORKER)
    assert case.draining == [False]
    assert not case.num_avoided


def test_of_two_workers_the_one_of_more_findings_is_suspected() -> None:
    case = Suspected(3)
    case.find(AuditSource.WORKER, "w0:1", audited_by="w2:1")
    case.find(AuditSource.WORKER, "w1:1", answered_by=["w1:1"], audited_by="w2:1")
    assert case.draining == [False, False, True]
    assert case.cluster.worker_records.num_failures_of("w2:1") == 1
    assert case.cluster.worker_records.num_failures_of("w1:1") == 0


def test_findings_are_forgotten() -> None:
    case = Suspected()
    case.find(AuditSource.WORKER)
    case.clock.now += FORGET_S
    case.find(AuditSource.WORKER)
    assert case.draining == [False, False]


def test_a_finding_makes_the_worker_that_answered_forget_its_prefixes() -> None:
    case, router = Suspected(1), Router()
    for handle, is_suspected in ((1, False), (1, True)):
        group = add_request(case.cluster, router, handle)
        assert group is not None
        finish(case.cluster, case.loops[0])
        assert (group.num_cached_tokens > 0) is is_suspected
        router.ended.clear()
    case.find(AuditSource.WORKER)
    group = add_request(case.cluster, router, 1)
    assert group is not None
    finish(case.cluster, case.loops[0])
    assert group.num_cached_tokens == 0
