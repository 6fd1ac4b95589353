"""Ranks of a worker on Ray: three nodes on this machine."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from signalbox_scheduler.config import SchedulerConfig
from tests.integration.failures.test_lost_ranks import (
    NUM_REQUESTS,
    add_requests,
    has_ended,
    tokens_of,
)
from tests.integration.placement.ranks import MODEL_FLAGS
from tests.integration.placement.ray_cluster import a_worker_node, add_node
from tests.integration.stack import assert_idle, router, running_scheduler, until_workers
from tests.ports import free_port
from tests.rpc.certificates import Authority, tls_settings
from tests.signalbox.stacks import COMMAND, environment, signalbox
from tests.waiting import EVENT_S, eventually, wait_until

ray = pytest.importorskip("ray")

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("ray")]


class RayWorker:
    """A `signalbox worker` on Ray, and the processes of its ranks."""

    def __init__(self, cluster: Any, model: Path, log: Path, *flags: str) -> None:
        self.log = log
        command = [
            *(*COMMAND, "worker", str(model), f"--placement=ray={cluster.address}"),
            *(f"--rank-port={free_port()}", "--drain-timeout=0", *MODEL_FLAGS, *flags),
        ]
        with log.open("wb") as sink:
            self.process = psutil.Popen(command, env=environment(), stdout=sink, stderr=sink)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()

    def ranks(self) -> list[psutil.Process]:
        """Of this worker, by rank, wherever Ray has started them."""
        port = next(one for one in self.process.cmdline() if one.startswith("--rank-port"))
        found = [one for one in psutil.process_iter(["cmdline"]) if is_rank(one, port)]
        return sorted(found, key=lambda one: int(one.environ()["RANK"]))


def is_rank(process: psutil.Process, port: str) -> bool:
    words = process.info["cmdline"] or []
    return port in words and "--placement=environment" in words and "-m" in words


def groups() -> list[str]:
    return [
        one["state"]
        for one in ray.util.placement_group_table().values()
        if one["state"] != "REMOVED"
    ]


async def test_a_worker_on_ray_computes_and_ends_in_order(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    async with running_scheduler(SchedulerConfig(port=0, worker_wait=120)) as scheduler:
        flags = (f"--scheduler={scheduler.address}", "--pipeline-parallel-size=3")
        worker = RayWorker(cluster, model, tmp_path / "log", *flags)
        try:
            await until_workers(scheduler, 1)
            ranks = worker.ranks()
            assert len(ranks) == 3
            async with router(scheduler.address) as client:
                await add_requests(client, 0)
                await client.ended(*range(NUM_REQUESTS))
                assert all(len(one[0]) == 120 for one in tokens_of(client, 0))
            await assert_idle(scheduler)
            worker.process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(worker.process.wait, EVENT_S)
            assert status == 0, worker.log.read_text()
            assert all(map(has_ended, ranks))
        finally:
            worker.kill()


async def test_a_worker_listens_on_its_node_for_a_scheduler_elsewhere(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    host = cluster.head_node.node_ip_address
    config = SchedulerConfig(host=host, port=0, worker_wait=120, insecure=True)
    async with running_scheduler(config) as scheduler:
        flags = (f"--scheduler={scheduler.address}", "--insecure")
        worker = RayWorker(cluster, model, tmp_path / "log", *flags)
        try:
            await until_workers(scheduler, 1)
            line = f"ranks: 1) on {host}:"  # Ray passes on what ranks log when it likes
            await eventually(lambda: line in worker.log.read_text())
            (rank,) = worker.ranks()
            worker.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(worker.process.wait, EVENT_S) == 0
            assert has_ended(rank)
        finally:
            worker.kill()


async def test_all_nodes_may_have_one_certificate_that_is_for_no_address(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    tls = authority.member("worker")
    config = SchedulerConfig(
        port=0, worker_wait=120, **tls_settings(authority.member("scheduler", "127.0.0.1"))
    )
    async with running_scheduler(config) as scheduler:
        flags = (
            *(f"--scheduler={scheduler.address}", "--pipeline-parallel-size=3"),
            *(f"--tls-cert={tls.cert}", f"--tls-key={tls.key}", f"--tls-ca={tls.ca}"),
            *(f"--tls-client-ca={tls.client_ca}", f"--drain-timeout={EVENT_S}"),
        )
        worker = RayWorker(cluster, model, tmp_path / "log", *flags)
        try:
            await until_workers(scheduler, 1)
            ranks = worker.ranks()
            worker.process.send_signal(signal.SIGTERM)
            status = await asyncio.to_thread(worker.process.wait, EVENT_S)
            assert status == 0, worker.log.read_text()
            assert len(ranks) == 3
            assert all(map(has_ended, ranks))
        finally:
            worker.kill()


def test_a_certificate_that_a_node_lacks_is_named(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    tls, lost = Authority(tmp_path).member("worker"), tmp_path / "lost.pem"
    worker = RayWorker(
        *(cluster, model, tmp_path / "log", f"--tls-cert={lost}", f"--tls-key={tls.key}"),
        *(f"--tls-ca={tls.ca}", f"--tls-client-ca={tls.client_ca}"),
    )
    assert worker.process.wait(EVENT_S) == 1
    assert "cannot read its certificate: " in worker.log.read_text()
    assert str(lost) in worker.log.read_text()


@pytest.mark.parametrize("harm", ["driver", "actor", "rank"])
async def test_nothing_is_left_of_a_worker_of_which_a_process_is_killed(
    harm: str, cluster: Any, model: Path, tmp_path: Path
) -> None:
    ray.init(address=cluster.address, ignore_reinit_error=True, log_to_driver=False)
    async with running_scheduler(SchedulerConfig(port=0, worker_wait=120)) as scheduler:
        flags = (f"--scheduler={scheduler.address}", "--pipeline-parallel-size=3")
        worker = RayWorker(cluster, model, tmp_path / "log", *flags)
        try:
            await until_workers(scheduler, 1)
            await eventually(lambda: groups() == ["CREATED"])  # those of tests before are gone
            ranks = worker.ranks()
            actors = [rank.parent() for rank in ranks]
            {"driver": worker.process, "actor": actors[1], "rank": ranks[2]}[harm].kill()
            status = await asyncio.to_thread(worker.process.wait, EVENT_S)
            assert status == (-signal.SIGKILL if harm == "driver" else 1)
            await eventually(lambda: all(map(has_ended, [*ranks, *actors])))
            await eventually(lambda: not groups())
            await eventually(lambda: not scheduler.cluster.step_loops)
        finally:
            worker.kill()
            ray.shutdown()


def test_what_no_node_has_is_refused_at_once(cluster: Any, model: Path, tmp_path: Path) -> None:
    worker = RayWorker(
        *(cluster, model, tmp_path / "log", "--pipeline-parallel-size=3"),
        *("--placement-strategy=STRICT_PACK", "--placement-timeout=1000"),
    )
    assert worker.process.wait(EVENT_S) == 1
    assert (
        "the worker takes 3 CPU of one node, and the largest node has 2; no autoscaler adds nodes"
    ) in worker.log.read_text()


def test_a_host_that_the_scheduler_cannot_call_is_refused(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    worker = RayWorker(
        *(cluster, model, tmp_path / "log", "--host=127.0.0.1", "--scheduler=192.0.2.1:50052")
    )
    assert worker.process.wait(EVENT_S) == 1
    assert (
        "the scheduler at 192.0.2.1:50052 cannot call rank 0 on 127.0.0.1" in worker.log.read_text()
    )


def test_resources_in_use_are_waited_for(cluster: Any, model: Path, tmp_path: Path) -> None:
    ray.init(address=cluster.address, ignore_reinit_error=True, log_to_driver=False)
    try:
        taken = ray.util.placement_group([{"CPU": 2}] * 3)
        ray.get(taken.ready())
        worker = RayWorker(cluster, model, tmp_path / "log", "--placement-timeout=1")
        assert worker.process.wait(EVENT_S) == 1
        assert "Ray had no room for {CPU: 1} (PACK) within 1 s; free are 0 CPU: " in (
            worker.log.read_text()
        )
        ray.util.remove_placement_group(taken)
        wait_until(lambda: not groups())
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: "),
        ("ray://127.0.0.1:10001", "give HOST:PORT of the head"),
    ],
)
def test_no_cluster_is_named(address: str, message: str, model: Path) -> None:
    ended = signalbox("worker", str(model), f"--placement=ray={address}")
    assert ended.returncode == 1
    assert message in ended.stderr


async def test_a_node_that_is_removed_costs_no_request(
    cluster: Any, model: Path, tmp_path: Path
) -> None:
    async with running_scheduler(SchedulerConfig(port=0, worker_wait=120)) as scheduler:
        flags = (
            *(f"--scheduler={scheduler.address}", "--pipeline-parallel-size=3"),
            "--placement-strategy=SPREAD",
        )
        first = RayWorker(cluster, model, tmp_path / "first", *flags)
        second: RayWorker | None = None
        try:
            await until_workers(scheduler, 1)
            async with router(scheduler.address) as client:
                await add_requests(client, 0)
                await client.ended(*range(NUM_REQUESTS))
                await add_requests(client, 100)
                await eventually(lambda: len(tokens_of(client, 100)[0].get(0, ())) > 20)
                ranks = first.ranks()
                await asyncio.to_thread(cluster.remove_node, a_worker_node(cluster))
                assert await asyncio.to_thread(first.process.wait, EVENT_S) == 1
                assert all(map(has_ended, ranks))
                add_node(cluster)
                second = RayWorker(cluster, model, tmp_path / "second", *flags)
                await client.ended(*range(100, 100 + NUM_REQUESTS))
                assert tokens_of(client, 100) == tokens_of(client, 0)
            await assert_idle(scheduler)
        finally:
            for worker in filter(None, (first, second)):
                worker.kill()
