"""Places of ranks, as torchrun, Slurm and a LeaderWorkerSet tell them."""

import socket

import pytest

from signalbox_rpc.transport.listening_ports import BindError, PortInUse
from signalbox_rpc.transport.tls import TlsConfig
from signalbox_worker.runner.ranks.rank_network import (
    LOOPBACK,
    RankNetwork,
    RankPlace,
    collective_hosts,
    first_of_nodes,
    read_place,
)
from tests.ports import free_port

PORT = free_port()
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu7",
    "MASTER_PORT": "29500",
}
LWS = {"LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2", "LWS_LEADER_ADDRESS": "w-0.w.default"}
SLURM = {
    "SLURM_PROCID": "5",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NODELIST": "n[03-04]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_JOB_NODELIST": "n[01-04]",
    "SLURM_JOB_NUM_NODES": "4",
}


def place(rank: int = 0, size: int = 2, *, host: str = LOOPBACK, is_one: bool = False) -> RankPlace:
    return RankPlace("torchrun", rank, size, host, is_one_host=is_one)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (TORCHRUN, RankPlace("torchrun", 3, 4, "gpu7", False, 1)),
        (
            {**TORCHRUN, "MASTER_CERTIFIED_NAME": "worker"},
            RankPlace("torchrun", 3, 4, "gpu7", False, 1, "worker"),
        ),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "4"}, RankPlace("torchrun", 3, 4, "gpu7", True, 1)),
        (LWS, RankPlace("the LeaderWorkerSet", 1, 2, "w-0.w.default", False)),
        (SLURM, RankPlace("Slurm", 5, 8, "n03", False, 1)),
        ({**SLURM, "SLURM_STEP_NUM_NODES": "1"}, RankPlace("Slurm", 5, 8, "n03", True, 1)),
        ({**SLURM, **LWS, **TORCHRUN}, RankPlace("torchrun", 3, 4, "gpu7", False, 1)),
    ],
)
def test_a_place_is_read(variables: dict[str, str], expected: RankPlace) -> None:
    assert read_place(variables) == expected


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, r"start the command by torchrun \(RANK, .* or use 'local'"),
        ({"SLURM_PROCID": "1"}, "says of no rank"),
        ({**LWS, "LWS_WORKER_INDEX": "x"}, "LWS_WORKER_INDEX is 'x' in the environment"),
        ({**TORCHRUN, "RANK": "4"}, "torchrun says that this is rank 4 of 4"),
    ],
)
def test_a_place_that_makes_no_sense_is_refused(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_place(variables)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [("a", "a"), ("a7,b", "a7"), ("a[01-03,7],b", "a01"), ("r[2,5-9]n[3-4]x,c", "r2n3x"), ("", "")],
)
def test_the_first_of_a_list_of_nodes_is_found(nodes: str, first: str) -> None:
    assert first_of_nodes(nodes) == first


def test_ranks_of_one_host_listen_on_loopback() -> None:
    network = RankNetwork.of(
        place(1, host="elsewhere", is_one=True), host=None, port=PORT, tls=TlsConfig()
    )
    assert (network.address, network.first_address) == (
        f"127.0.0.1:{PORT + 1}",
        f"127.0.0.1:{PORT}",
    )


def test_a_rank_listens_where_packets_to_rank_0_come_from() -> None:
    network = RankNetwork.of(place(1, host="127.0.0.7"), host=None, port=PORT, tls=TlsConfig())
    assert (network.address, network.first_address) == (
        f"127.0.0.1:{PORT + 1}",
        f"127.0.0.7:{PORT}",
    )


def test_an_interface_stands_for_its_address() -> None:
    network = RankNetwork.of(place(), host="lo", port=PORT, tls=TlsConfig())
    assert network.address == f"127.0.0.1:{PORT}"


def test_ranks_that_others_reach_show_certificates_unless_the_network_is_trusted() -> None:
    with pytest.raises(BindError, match=r"192\.0\.2\.1:\d+ where anybody .* --insecure"):
        RankNetwork.of(place(), host="192.0.2.1", port=PORT, tls=TlsConfig())
    with pytest.raises(BindError, match="assign requested address"):  # which is none of ours
        RankNetwork.of(place(), host="192.0.2.1", port=PORT, tls=TlsConfig(insecure=True))


def test_a_rank_does_not_listen_on_all_addresses() -> None:
    with pytest.raises(ValueError, match="which no rank can call; name an interface"):
        RankNetwork.of(place(), host="0.0.0.0", port=PORT, tls=TlsConfig(insecure=True))


def test_certificates_of_one_side_alone_are_refused() -> None:
    with pytest.raises(ValueError, match="give --tls-cert, --tls-key and --tls-ca"):
        RankNetwork.of(place(), host=None, port=PORT, tls=TlsConfig(ca="ca.pem"))


def test_a_range_of_ports_that_ends_too_soon_is_refused() -> None:
    with pytest.raises(ValueError, match="rank_port is 65535, which leaves no 2 ports"):
        RankNetwork.of(place(), host=None, port=65535, tls=TlsConfig())


def test_a_port_that_is_taken_is_named() -> None:

    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"{LOOPBACK}:{port}: .* choose another --rank-port"):
            RankNetwork.of(place(is_one=True), host=None, port=port, tls=TlsConfig())


def test_an_unknown_host_of_rank_0_is_named() -> None:
    with pytest.raises(ValueError, match="the host of rank 0, no-such-host, is unknown"):
        RankNetwork.of(place(1, host="no-such-host"), host=None, port=1, tls=TlsConfig())


def test_collectives_leave_a_host_in_a_trusted_network_alone() -> None:
    here = ["a", "a", "b", "b"]
    assert collective_hosts(here, ranks_of_stage=2, trusted=False) == [LOOPBACK] * 4
    assert collective_hosts(["a", "b"], ranks_of_stage=1, trusted=False) == [LOOPBACK] * 2
    apart = ["a", "b", "b", "b"]
    with pytest.raises(ValueError, match=r"ranks 0 to 1 .* hosts \(a, b\).* --insecure"):
        collective_hosts(apart, ranks_of_stage=2, trusted=False)
    found = collective_hosts(apart, ranks_of_stage=2, trusted=True)
    assert found == ["a", "b", LOOPBACK, LOOPBACK]
