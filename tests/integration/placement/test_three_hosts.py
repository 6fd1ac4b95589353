"""Ranks, scheduler and router on three hosts, with certificates."""

import contextlib
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.harness.hosts import Host
from tests.integration.placement.ranks import StartedRanks, of_set, started_ranks
from tests.rpc.certificates import Authority
from tests.signalbox.stacks import COMMAND, environment
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system

PORT = 50100


def tls_flags(authority: Authority, *names: str, clients: bool = True) -> list[str]:
    tls = authority.member(*names)
    flags = [f"--tls-cert={tls.cert}", f"--tls-key={tls.key}", f"--tls-ca={tls.ca}"]
    return [*flags, f"--tls-client-ca={tls.client_ca}"] if clients else flags


def start(
    ranks: StartedRanks, three: list[Host], model: Path, *flags: str, scheduler: str = "127.0.0.1:1"
) -> None:
    """Starts a rank on each host. Each finds its own address."""
    for rank, host in enumerate(three):
        ranks.start(
            *(str(model), "--pipeline-parallel-size=3", f"--rank-port={PORT}", *flags),
            *(f"--scheduler={scheduler}", f"--host={host.address}"),
            variables=of_set(rank, 3, three[0].address),
            within=host.command,
        )


@contextlib.contextmanager
def service(host: Host, log: Path, *arguments: str) -> Iterator[None]:
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*host.command, *COMMAND, *arguments], env=environment(), stderr=sink
        )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_a_request_passes_three_hosts(three: list[Host], model: Path, tmp_path: Path) -> None:
    authority, (first, second, third) = Authority(tmp_path), three
    scheduler = f"{second.address}:50052"
    of_worker = tls_flags(authority, "worker", first.address)
    of_scheduler = tls_flags(authority, "scheduler", second.address)
    of_router = tls_flags(authority, "router", third.address, clients=False)
    with (
        service(second, tmp_path / "s", "scheduler", f"--host={second.address}", *of_scheduler),
        started_ranks(tmp_path) as ranks,
        service(
            third,
            tmp_path / "r",
            *("router", f"--host={third.address}", f"--scheduler={scheduler}", "--no-http"),
            *of_router,
        ),
    ):
        start(ranks, three, model, *of_worker, "--drain-timeout=0", scheduler=scheduler)
        ranks.until_ready()
        asked = [*first.command, *COMMAND, "generate", "a", "--max-tokens=4", "--json"]
        asked += [f"--tls-ca={authority.file}", f"--router={third.address}:50051"]
        told: list[str] = []

        def answered() -> bool:
            done = subprocess.run(
                asked,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=environment(),
                check=False,
            )
            told.append(done.stderr)
            return done.returncode == 0

        wait_until(answered, told=lambda: told[-1] + ranks.log())
        ranks.processes[0].send_signal(signal.SIGTERM)
        assert ranks.statuses() == [0, 0, 0]


def test_two_ranks_that_do_not_reach_each_other_are_named(
    three: list[Host], model: Path, tmp_path: Path
) -> None:
    three[2].drop(three[1])
    with started_ranks(tmp_path) as ranks:
        start(ranks, three, model, "--insecure")
        assert ranks.statuses() == [1, 1, 1]
        pairs = (
            rf"rank 1: cannot reach rank 2 at {three[2].address}:{PORT + 2} within 10 s",
            rf"rank 2: cannot reach rank 1 at {three[1].address}:{PORT + 1} within 10 s",
        )
        assert any(re.search(one, ranks.log()) for one in pairs), ranks.log()


def test_a_host_that_is_cut_off_ends_all_ranks(
    three: list[Host], model: Path, tmp_path: Path
) -> None:
    with started_ranks(tmp_path) as ranks:
        start(ranks, three, model, "--insecure")
        ranks.until_ready()
        three[1].cut_off()
        assert [int(one.wait(EVENT_S)) for one in ranks.processes] == [1, 1, 1]
        assert "rank 1 has ended, or no longer answers; the worker exits" in ranks.log()
