"""`signalbox doctor --placement environment`: ranks that others start, without a model."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.harness.hosts import Host
from tests.integration.placement.ranks import of_set
from tests.integration.placement.test_environment_ranks import assert_free
from tests.ports import free_port
from tests.rpc.certificates import Authority
from tests.signalbox.stacks import COMMAND, environment
from tests.waiting import EVENT_S

pytestmark = pytest.mark.system

PORT = 50100
DOCTOR = (*COMMAND, "doctor", "--placement=environment", "--json")


def run_ranks(
    *flags: str, leader: str = "127.0.0.1", within: Sequence[Sequence[str]] = ((), (), ())
) -> list[subprocess.CompletedProcess[str]]:
    """Runs three ranks until all have ended. Args: within: what runs each command."""
    started = [
        subprocess.Popen(
            [*prefix, *DOCTOR, *flags],
            env=environment() | of_set(rank, 3, leader),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, prefix in enumerate(within)
    ]
    try:
        outputs = [one.communicate(timeout=EVENT_S) for one in started]
    finally:
        for one in started:
            one.kill()
    return [
        subprocess.CompletedProcess(one.args, one.returncode, *output)
        for one, output in zip(started, outputs, strict=True)
    ]


def test_each_link_is_measured_both_ways_and_no_port_is_left_open() -> None:
    port = free_port()
    first, *others = run_ranks(f"--rank-port={port}", "--rank-host=127.0.0.1")
    assert first.returncode == 0, first.stderr
    assert [(one.returncode, one.stdout) for one in others] == [(0, ""), (0, "")]
    links = json.loads(first.stdout)["links"]
    pairs = {(one["rank"], one["other_rank"]) for one in links}
    assert pairs == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}
    for one in links:
        assert one["address"] == f"127.0.0.1:{port + one['rank']}"
        assert one["round_trip_s"] > 0
        assert one["bytes_per_s"] > 0
    assert_free(port, port + 1, port + 2)


def test_links_are_measured_with_certificates(tmp_path: Path) -> None:
    tls = Authority(tmp_path).member("worker", "127.0.0.1")
    first, *_ = run_ranks(
        *(f"--rank-port={free_port()}", "--rank-host=127.0.0.1"),
        *(f"--tls-cert={tls.cert}", f"--tls-key={tls.key}"),
        *(f"--tls-ca={tls.ca}", f"--tls-client-ca={tls.client_ca}"),
    )
    assert first.returncode == 0, first.stderr
    assert len(json.loads(first.stdout)["links"]) == 6


def test_pairs_that_cannot_exchange_messages_are_named_with_their_addresses(
    three: list[Host],
) -> None:
    three[2].drop(three[1])
    results = run_ranks(
        f"--rank-port={PORT}",
        "--insecure",
        leader=three[0].address,
        within=[host.command for host in three],
    )
    assert [one.returncode for one in results] == [1, 1, 1]
    message = results[0].stderr
    assert f"rank 1: cannot reach rank 2 at {three[2].address}:{PORT + 2} within 10 s" in message
    assert f"rank 2: cannot reach rank 1 at {three[1].address}:{PORT + 1} within 10 s" in message
    assert "rank 0: cannot reach" not in message


def test_a_single_rank_has_no_links() -> None:
    result = subprocess.run(
        DOCTOR, env=environment() | of_set(0, 1), capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "has started one rank, which has no links" in result.stderr
