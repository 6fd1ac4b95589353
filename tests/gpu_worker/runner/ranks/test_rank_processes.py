"""Ranks as processes end together, with the right status, and leave nothing."""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from signalbox_protos.rank.v1 import rank_pb2 as pb
from signalbox_worker.config import ModelError
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.ranks.follower_process import Follower
from signalbox_worker.runner.ranks.launchers import AwaitedRanks, LocalRank, LocalRanks
from signalbox_worker.runner.ranks.rank_network import RankNetwork
from signalbox_worker.runner.ranks.rank_starts import versions
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from signalbox_worker.runner.ranks.service import rank_client, rank_codec
from signalbox_worker.runner.ranks.service.rank_client import NextRank
from signalbox_worker.runner.ranks.service.rank_messages import (
    FailedStates,
    Failure,
    Hello,
    RankAddress,
)
from signalbox_worker.runner.ranks.service.rank_servicer import (
    FirstRankServicer,
    JoinedRank,
    Meeting,
    RankLost,
    RankServer,
    RankServicer,
)
from tests.chaos.fault_proxy import FaultProxy
from tests.gpu_worker.generation import make_batch, make_sequence
from tests.gpu_worker.runner.ranks.thread_ranks import make_start, with_sizes
from tests.ports import free_port
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system


class Launched:
    """A launcher that keeps what it has started."""

    def __init__(self, *, most: int = 99) -> None:
        self.ranks: list[LocalRank] = []
        self._most = most

    def __call__(self, rank: int, address: str) -> LocalRank:
        if len(self.ranks) == self._most:
            raise OSError("no process can be made")
        self.ranks.append(LocalRank(rank, address))
        return self.ranks[-1]

    @property
    def statuses(self) -> list[int | None]:
        return [one._process.poll() for one in self.ranks]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where sockets of the ranks are made: not below `tmp_path`, as their paths must be short."""
    with tempfile.TemporaryDirectory() as made:
        monkeypatch.setattr(tempfile, "tempdir", made)
        yield Path(made)


def test_ranks_end_in_order_with_status_0(native_tiny: Path, folder: Path) -> None:
    launch = Launched()
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    runner = RankedRunner(start, on_lost=pytest.fail, ranks=LocalRanks(launch))
    assert list(folder.iterdir())
    runner.close()
    assert launch.statuses == [0, 0]
    assert not list(folder.iterdir())


def test_ranks_of_a_worker_that_cannot_start_end_with_status_1(
    native_tiny: Path, folder: Path
) -> None:
    launch = Launched()
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    start = replace(start, parallel=replace(start.parallel, layer_partition=(1, 2, 2)))
    with pytest.raises(ModelError, match=r"pipeline_layer_partition is 1,2,2; .* the sum 3"):
        RankedRunner(start, on_lost=pytest.fail, ranks=LocalRanks(launch))
    assert launch.statuses == [1, 1]
    assert not list(folder.iterdir())


def test_a_rank_that_cannot_be_started_leaves_none(native_tiny: Path, folder: Path) -> None:
    launch = Launched(most=1)
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    with pytest.raises(OSError, match="no process can be made"):
        RankedRunner(start, on_lost=pytest.fail, ranks=LocalRanks(launch))
    assert launch.statuses == [-signal.SIGKILL] or launch.statuses == [1]
    assert not list(folder.iterdir())


def test_no_rank_outlives_rank_0(native_tiny: Path, folder: Path) -> None:
    with rank_0(native_tiny, folder) as (process, pids):
        assert len(pids) == 2
        process.kill()
        wait_until(lambda: not any(map(runs, pids)))
    assert not list(folder.iterdir())


def test_a_batch_whose_states_never_come_names_the_rank_that_was_lost(
    native_tiny: Path, folder: Path
) -> None:
    """A broken link is seen before the end of the process behind it."""
    launch, reasons = Launched(), SimpleQueue[str]()
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    runner = RankedRunner(start, on_lost=reasons.put, ranks=LocalRanks(launch))
    runner.init_cache_engine(num_gpu_blocks=9, num_cpu_blocks=0)
    runner._others.servicer.incoming.put(None)
    launched = runner.launch(make_batch([(make_sequence([5, 6, 7], [3]), 3)], block_size=16))
    launch.ranks[0].kill()
    with pytest.raises(DeviceLost, match=r"^rank 1 was killed by SIGKILL$"):
        launched.samples()
    assert reasons.get(timeout=EVENT_S) == "rank 1 was killed by SIGKILL"
    runner.close()
    assert not list(folder.iterdir())


def test_a_pause_of_all_ranks_costs_none(native_tiny: Path, folder: Path) -> None:
    """As of a machine that is suspended: which process goes on first is chance."""
    with rank_0(native_tiny, folder) as (process, pids):
        everyone = [process.pid, *pids]
        for _ in range(2):
            for pid in everyone:
                os.kill(pid, signal.SIGSTOP)
            time.sleep(4)
            for pid in everyone:
                os.kill(pid, signal.SIGCONT)
            time.sleep(2)
        assert all(map(runs, everyone))


@contextmanager
def rank_0(model: Path, folder: Path) -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """Yields the first of three ranks, and the process ids of the others."""
    program = (
        "import sys, time; from pathlib import Path; from signalbox_worker.main import end_at_once;"
        "from signalbox_worker.device.parallel_config import ParallelConfig;"
        "from signalbox_worker.runner.ranks.ranked_runner import RankedRunner;"
        "from tests.gpu_worker.runner.ranks.thread_ranks import make_start, with_sizes;"
        "start = with_sizes(make_start(Path(sys.argv[1]), ParallelConfig()), 1, 3);"
        "from signalbox_worker.runner.ranks.launchers import LocalRanks;"
        "runner = RankedRunner(start, ranks=LocalRanks(), on_lost=end_at_once);"
        "print(*runner.follower_pids, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(model)]
    variables = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        try:
            yield process, [int(pid) for pid in process.stdout.readline().split()]
        finally:
            process.kill()


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_rank_that_others_cannot_reach_is_named(
    native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 1 joins, and says that it listens where nothing does."""
    monkeypatch.setattr(rank_client, "REACH_S", 0.5)
    port = free_port()
    network = RankNetwork(address=f"127.0.0.1:{port}", first_address=f"127.0.0.1:{port}")
    join_only(network, Hello(1, versions(), f"127.0.0.1:{port + 1}", 0))
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 2)
    reason = rf"cannot reach rank 1 at 127\.0\.0\.1:{port + 1} within 0\.5 s .*let such ports"
    with pytest.raises(ConnectionError, match=reason):
        RankedRunner(start, on_lost=lambda _: None, ranks=AwaitedRanks(network))


def join_only(network: RankNetwork, hello: Hello) -> None:
    """Joins rank 0 on a thread, and obeys no command."""

    def join() -> None:
        first = rank_client.FirstRank(RankAddress(network.first_address))
        first.report(hello)
        with suppress(RankLost):
            list(first.commands())

    threading.Thread(target=join, daemon=True).start()


def test_ranks_that_do_not_join_are_named(
    native_tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    address = f"127.0.0.1:{free_port()}"
    reasons: list[str] = []
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    with pytest.raises(DeviceLost, match=rf"ranks 1, 2 have not joined at {address} within"):
        RankedRunner(
            start,
            on_lost=reasons.append,
            ranks=AwaitedRanks(RankNetwork(address=address, first_address=address), join_s=0.25),
        )
    assert len(reasons) == 1
    assert f"waiting at {address} for 2 ranks" in caplog.messages


@pytest.mark.parametrize(
    ("of", "told", "reason"),
    [
        ("Signalbox 0", b"", f"rank 1 has Signalbox 0, and rank 0 {re.escape(versions())}"),
        ("Signalbox 0", b'{"later": 1}', "rank 1 has Signalbox 0, and rank 0 "),
        (versions(), b'{"later": 1}', "Start\nmodel\n  Field required"),
    ],
)
def test_a_rank_of_another_version_is_named(
    of: str, told: bytes, reason: str, native_tiny: Path
) -> None:
    address = f"127.0.0.1:{free_port()}"
    network = RankNetwork(address=address, first_address=address)
    join_only(network, Hello(1, of, address, 0, told))
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 2)
    with pytest.raises(ValueError, match=reason):
        RankedRunner(start, on_lost=pytest.fail, ranks=AwaitedRanks(network))


@pytest.mark.parametrize(
    ("name", "fields", "data", "reason"),
    [
        ("Never", b"{}", None, "ranks send no Never there"),
        ("Loaded", b"{}", None, "ranks send no Loaded there"),
        ("Batch", b"{}", None, "ranks send no Batch there"),
        ("Sync", b'{"more": 1}', None, "Extra inputs are not permitted"),
        ("Sync", b"{}", b"block", "ranks send no content of a block with Sync"),
        ("InitCacheEngine", b'{"num_gpu_blocks": NaN, "num_cpu_blocks": 1}', None, "valid integer"),
        ("OpenBlocks", b"[" * 10_000, None, "recursion limit"),
    ],
)
def test_a_rank_that_cannot_read_a_command_is_lost(
    name: str, fields: bytes, data: bytes | None, reason: str, folder: Path
) -> None:
    command = pb.JoinResponse(message=pb.RankMessage(name=name, fields=fields, data=data))
    with pytest.raises(ValueError, match=reason):
        rank_codec.decode_command(command)

    def send(joined: JoinedRank) -> None:
        joined._commands.put(command)

    servicer = FirstRankServicer(send, Meeting(), lambda _: None)
    server = RankServer(servicer, f"unix:{folder}/0", num_streams=1)
    lost: SimpleQueue[int] = SimpleQueue()
    network = RankNetwork(address=f"unix:{folder}/1", first_address=server.address)
    follower = Follower(1, network, on_end=lost.put)
    assert lost.get(timeout=EVENT_S) == 1
    follower.close()
    server.close()


@pytest.mark.parametrize("is_told", [True, False])
async def test_both_ends_of_a_link_between_stages_notice_its_end(is_told: bool) -> None:
    lost: SimpleQueue[str | int] = SimpleQueue()
    servicer = RankServicer(1, lost.put)
    server = RankServer(servicer, "127.0.0.1:0", num_streams=1)
    proxy = FaultProxy(target=int(server.address.rpartition(":")[2]))
    await proxy.start()
    connect = partial(
        NextRank, RankAddress(proxy.address), rank=2, on_lost=partial(lost.put, "next")
    )
    link = await asyncio.to_thread(connect)
    link.send(FailedStates(1, Failure("as a first message", False)))
    message, _ = await asyncio.to_thread(servicer.incoming.take)
    assert message.command == 1
    if is_told:
        proxy.cut()
    else:
        proxy.freeze()
    found = [await asyncio.to_thread(lost.get, True, EVENT_S) for _ in range(2)]
    assert set(found) == {2, "next"}
    with pytest.raises(RankLost, match="the stage before is gone"):
        servicer.incoming.take()
    with pytest.raises(RankLost, match="the next stage is gone"):
        link.send(FailedStates(2, Failure("to none", False)))
    link.close()
    server.close()
    await proxy.close()
