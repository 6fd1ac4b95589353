"""Ranks that others start: they meet over TCP, end together, and name what is wrong."""

import os
import re
import shutil
import signal
import socket
import ssl
import urllib.request
from pathlib import Path

import pytest

from tests.chaos.fault_proxy import FaultProxy
from tests.integration.placement.ranks import (
    StartedRanks,
    of_set,
    started_ranks,
    statuses,
    until_ready,
)
from tests.ports import free_port
from tests.rpc.certificates import Authority
from tests.signalbox.stacks import run_here
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system

NOWHERE = "--scheduler=127.0.0.1:1"


def start(
    ranks: StartedRanks,
    model: Path,
    *flags: str,
    port: int,
    leader: str = "127.0.0.1",
    of_last: tuple[str, ...] = (),
) -> None:
    """Starts a worker of three stages. Args: of_last: flags of rank 2 alone."""
    for rank in range(3):
        more = of_last if rank == 2 else ()
        ranks.start(
            *(str(model), "--pipeline-parallel-size=3", f"--rank-port={port}", NOWHERE),
            *(*flags, *more),
            variables=of_set(rank, 3, leader),
        )


def assert_free(*ports: int) -> None:
    for port in ports:
        socket.create_server(("127.0.0.1", port)).close()


def test_ranks_meet_by_the_variables_of_a_set_and_end_in_order(model: Path, tmp_path: Path) -> None:
    port = free_port()
    with started_ranks(tmp_path) as ranks:
        start(ranks, model, "--drain-timeout=0", port=port)
        ranks.until_ready()
        assert "3 ranks are one worker" in ranks.log()
        (address,) = re.findall(r"ranks: 3\) on (\S+), ", ranks.log())
        assert f"{model.name} on 3 stages" in run_here("health", "--address", address).stdout
        for one in ranks.processes:  # as when a group is deleted
            one.send_signal(signal.SIGTERM)
        assert ranks.statuses() == [0, 0, 0]
    assert_free(port, port + 1, port + 2)


def test_every_rank_answers_health_and_shows_metrics(model: Path, tmp_path: Path) -> None:
    """Ranks of one host have ports that follow those of rank 0."""
    tls = Authority(tmp_path).member("worker", "127.0.0.1")
    shown = (f"--tls-cert={tls.cert}", f"--tls-key={tls.key}", f"--tls-ca={tls.ca}")
    port, rank_port, metrics_port = free_port(), free_port(), free_port()
    health = ("health", f"--address=127.0.0.1:{port + 1}", *shown)

    def start_rank(number: int) -> None:
        ranks.start(
            *(str(model), "--pipeline-parallel-size=2", *shown, f"--tls-client-ca={tls.client_ca}"),
            *(NOWHERE, f"--rank-port={rank_port}", f"--port={port}"),
            f"--metrics-port={metrics_port}",
            variables=dict.fromkeys(("RANK", "LOCAL_RANK"), str(number))
            | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), "2")
            | {"MASTER_ADDR": "127.0.0.1"},
        )

    with started_ranks(tmp_path) as ranks:
        start_rank(1)
        wait_until(lambda: "is NOT_SERVING" in run_here(*health).stderr, told=ranks.log)
        start_rank(0)
        assert "is serving" in run_here(*health, f"--wait={EVENT_S}").stdout
        trusted = ssl.create_default_context(cafile=tls.ca)
        assert tls.cert is not None
        trusted.load_cert_chain(tls.cert, tls.key)
        url = f"https://127.0.0.1:{metrics_port + 1}/metrics"
        page = urllib.request.urlopen(url, context=trusted, timeout=EVENT_S).read().decode()
        labels = 'phase="compute",rank="1",stage="0"'
        assert f"signalbox_worker_rank_phase_seconds_total{{{labels}}}" in page
        assert "process_resident_memory_bytes" in page


def test_a_rank_that_waits_for_rank_0_ends_when_told(model: Path, tmp_path: Path) -> None:
    port = free_port()
    with started_ranks(tmp_path) as ranks:
        ranks.start(
            *(str(model), "--pipeline-parallel-size=2", f"--rank-port={port}", NOWHERE),
            variables=of_set(1, 2),
        )
        wait_until(lambda: "waits for rank 0" in ranks.log(), told=ranks.log)
        ranks.processes[0].send_signal(signal.SIGTERM)
        assert ranks.statuses() == [0]
    assert_free(port + 1)


@pytest.mark.parametrize(
    ("number", "reason"),
    [(signal.SIGKILL, "rank 2 has ended"), (signal.SIGSTOP, "or no longer answers")],
)
def test_a_rank_that_is_lost_ends_all_with_status_1(
    number: signal.Signals, reason: str, model: Path, tmp_path: Path
) -> None:
    port = free_port()
    with started_ranks(tmp_path) as ranks:
        start(ranks, model, port=port)
        ranks.until_ready()
        lost = ranks.processes.pop()
        lost.send_signal(number)
        assert ranks.statuses() == [1, 1]
        assert f"{reason}" in ranks.log()
        lost.send_signal(signal.SIGCONT)
        assert lost.wait() == (1 if number == signal.SIGSTOP else -signal.SIGKILL)
    assert_free(port, port + 1, port + 2)


async def test_a_link_that_freezes_ends_all_with_status_1(model: Path, tmp_path: Path) -> None:
    port = free_port()
    proxy = FaultProxy(target=port)
    await proxy.start("127.0.0.9", port)
    with started_ranks(tmp_path) as ranks:
        start(ranks, model, port=port, leader="127.0.0.9")
        await until_ready(ranks)
        proxy.freeze()
        assert await statuses(ranks) == [1, 1, 1]
        assert "has ended, or no longer answers; the worker exits" in ranks.log()
    await proxy.close()
    assert_free(port, port + 1, port + 2)


def test_ranks_show_each_other_certificates(model: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls, other = authority.member("worker", "127.0.0.1"), authority.member("worker.pod2")
    flags = (f"--tls-cert={tls.cert}", f"--tls-key={tls.key}", f"--tls-ca={tls.ca}")
    with started_ranks(tmp_path) as ranks:
        start(
            ranks,
            model,
            *(*flags, f"--tls-client-ca={tls.client_ca}"),
            port=free_port(),
            of_last=(f"--tls-cert={other.cert}", f"--tls-key={other.key}"),  # for no address
        )
        ranks.until_ready()
        assert "3 ranks are one worker" in ranks.log()


@pytest.mark.parametrize(
    ("names", "is_known"), [(("worker",), True), (("worker.other", "127.0.0.1"), False)]
)
def test_rank_0_is_called_by_its_address_and_known_by_its_name(
    names: tuple[str, ...], is_known: bool, model: Path, tmp_path: Path
) -> None:
    """A driver on Ray tells the others the name, so that all pods may have one certificate."""
    authority = Authority(tmp_path)
    port, waits = free_port(), "the rank at 127.0.0.1"
    with started_ranks(tmp_path) as ranks:
        for rank, certified in enumerate((names, ("worker",))):
            tls = authority.member(*certified)
            ranks.start(
                *(str(model), "--pipeline-parallel-size=2", f"--rank-port={port}", NOWHERE),
                *(f"--tls-cert={tls.cert}", f"--tls-key={tls.key}", f"--tls-ca={tls.ca}"),
                *(f"--tls-client-ca={tls.client_ca}", "--rank-host=127.0.0.1"),
                variables={
                    "RANK": str(rank),
                    "WORLD_SIZE": "2",
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_CERTIFIED_NAME": "worker",
                },
            )
        if is_known:
            ranks.until_ready()
        wait_until(lambda: is_known or waits in ranks.log(1), told=lambda: ranks.log(1))
        assert ("2 ranks are one worker" in ranks.log()) is is_known


def test_a_rank_without_the_role_of_a_worker_is_refused(model: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tls, other = authority.member("worker", "127.0.0.1"), authority.member("router", "127.0.0.1")
    flags = (f"--tls-cert={tls.cert}", f"--tls-key={tls.key}", f"--tls-ca={tls.ca}")
    others = (f"--tls-cert={other.cert}", f"--tls-key={other.key}")
    with started_ranks(tmp_path) as ranks:
        start(
            ranks,
            model,
            *(*flags, f"--tls-client-ca={tls.client_ca}"),
            port=free_port(),
            of_last=others,
        )
        assert ranks.processes[2].wait() == 1
        assert "ranks show a certificate for the role worker" in ranks.log(2)


def test_a_rank_of_another_command_is_named(model: Path, tmp_path: Path) -> None:
    with started_ranks(tmp_path) as ranks:
        start(ranks, model, port=free_port(), of_last=("--dtype=bfloat16", "--quantization=int8"))
        assert ranks.statuses() == [1, 1, 1]
        assert "rank 2 was started with another dtype, quantization than rank 0" in ranks.log()


def test_a_rank_with_other_weights_is_named(model: Path, tmp_path: Path) -> None:
    """The files lie at one path of each host, which a link of each process stands for here."""
    other = tmp_path / "other"
    shutil.copytree(model, other)
    with (other / "model.safetensors").open("r+b") as weights:
        weights.seek(-4, os.SEEK_END)
        weights.write(b"\0\0\0\0")
    port = free_port()
    with started_ranks(tmp_path) as ranks:
        for rank in range(2):
            host = tmp_path / f"host{rank}"
            host.mkdir()
            (host / "model").symlink_to(other if rank else model)
            ranks.start(
                *("model", "--pipeline-parallel-size=2", f"--rank-port={port}", NOWHERE),
                variables=of_set(rank, 2),
                folder=host,
            )
        assert ranks.statuses() == [1, 1]
        assert "rank 1 has another fingerprint than rank 0" in ranks.log()


def test_another_number_of_ranks_is_refused(model: Path, tmp_path: Path) -> None:
    with started_ranks(tmp_path) as ranks:
        ranks.start(str(model), "--pipeline-parallel-size=2", variables=of_set(0, 3))
        assert ranks.statuses() == [1]
        assert "has started 3 ranks, but --tensor-parallel-size times" in ranks.log()


def test_tensor_parallel_ranks_may_be_on_two_hosts_of_a_trusted_network(
    model: Path, tmp_path: Path
) -> None:
    port = free_port()
    with started_ranks(tmp_path) as ranks:
        for rank in range(2):
            ranks.start(
                *(str(model), "--tensor-parallel-size=2", f"--rank-port={port}", NOWHERE),
                *(f"--rank-host=127.0.0.{2 + rank}", "--insecure"),
                variables=of_set(rank, 2, "127.0.0.2"),
            )
        ranks.until_ready()
