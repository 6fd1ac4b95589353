"""Addresses of a worker's ranks, and the place of this one among those that torchrun, Slurm or a
LeaderWorkerSet starts.

Ranks of this machine that rank 0 has started listen on Unix sockets, others on a port each.
"""

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from signalbox_rpc.interceptors.certificate_names import dns_names
from signalbox_rpc.interceptors.peer_roles import WORKER
from signalbox_rpc.transport.listening_ports import (
    UNSPECIFIED_HOSTS,
    check_exposure,
    check_free,
    join_address,
)
from signalbox_rpc.transport.tls import TlsConfig
from signalbox_worker.device.interfaces import address_of
from signalbox_worker.device.parallel_config import LOOPBACK

JOIN_S = 120.0
"""Seconds for a rank that was started to join; five times as long if others start it."""
PORT_REMEDY = "choose another --rank-port"


FIRST_NAME = "MASTER_CERTIFIED_NAME"
"""Variable of `first_name`, which the driver on Ray sets beside those of torchrun, because it knows
nodes by their addresses alone."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """The place of a rank, as the environment states it."""

    launcher: str
    rank: int
    size: int
    first_host: str
    """Name or address of the host of rank 0."""
    is_one_host: bool
    """True if all ranks are on one host."""
    local_rank: int = 0
    """Number of this rank among those of its host."""
    first_name: str = ""
    """Name that the certificate of rank 0 is for; empty if it is for `first_host`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNetwork:
    """The addresses of a rank that the environment has started, and of rank 0."""

    address: str
    """HOST:PORT that this rank listens on."""
    first_address: str
    """HOST:PORT of rank 0."""
    first_name: str = ""
    """Name that the certificate of rank 0 is for, if not its address."""
    tls: TlsConfig = field(default_factory=TlsConfig)

    @classmethod
    def of(cls, place: RankPlace, *, host: str | None, port: int, tls: TlsConfig) -> "RankNetwork":
        """Finds the addresses of a rank.

        Args:
            host: name, address or interface of this rank; None chooses it.
            port: that of rank 0; those of the others follow.

        Raises ValueError or BindError for a port that cannot be used.
        """
        if port + place.size > 1 << 16:
            raise ValueError(
                f"rank_port is {port}, which leaves no {place.size} ports; {PORT_REMEDY}"
            )
        own = address_of(host) or host if host else None
        if own is None:
            own = LOOPBACK if place.is_one_host else _host_towards(place.first_host, port)
        if own.strip("[]") in UNSPECIFIED_HOSTS:
            raise ValueError(f"rank_host is {own}, which no rank can call; name an interface")
        if tls.serves != tls.dials:
            raise ValueError(
                "ranks serve and call each other: give --tls-cert, --tls-key and --tls-ca"
            )
        network = cls(
            address=join_address(own, port + place.rank),
            first_address=join_address(own if place.is_one_host else place.first_host, port),
            first_name=place.first_name,
            tls=tls,
        )
        check_exposure(network.address, tls, names_callers=True)
        check_free(own, port + place.rank, remedy=PORT_REMEDY)
        return network


def read_place(environment: Mapping[str, str]) -> RankPlace:
    """Returns this rank's place; within the others that of torchrun. Raises ValueError."""
    for read in (_torchrun, _leader_worker_set, _slurm):
        if (place := read(environment)) is not None:
            if not 0 <= place.rank < place.size:
                raise ValueError(
                    f"{place.launcher} says that this is rank {place.rank} of {place.size}"
                )
            return place
    raise ValueError(
        "placement is 'environment', which says of no rank: start the command by torchrun (RANK,"
        " WORLD_SIZE, MASTER_ADDR), srun (SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_NODELIST) or in a"
        " LeaderWorkerSet (LWS_WORKER_INDEX, LWS_GROUP_SIZE, LWS_LEADER_ADDRESS), or use 'local'"
    )


def first_of_nodes(nodes: str) -> str:
    """Returns the first name of a list as Slurm writes it, such as a[01-03,7]b,c: a01b."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None, "it may be empty"
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def collective_hosts(hosts: Sequence[str], *, ranks_of_stage: int, trusted: bool) -> list[str]:
    """Returns where the collectives of each rank listen: on loopback if its stage is on one host.

    Args:
        hosts: of all ranks.
        trusted: whether the operator calls the network between hosts trusted.

    Raises ValueError if collectives, which nothing encrypts, would leave a host.
    """
    found: list[str] = []
    for first in range(0, len(hosts), ranks_of_stage):
        stage = hosts[first : first + ranks_of_stage]
        if len(set(stage)) == 1:
            found += [LOOPBACK] * len(stage)
            continue
        if not trusted:
            raise ValueError(
                f"ranks {first} to {first + len(stage) - 1} are tensor-parallel, and on several"
                f" hosts ({', '.join(dict.fromkeys(stage))}); what they exchange is in the clear:"
                " put the ranks of each stage on one host, or give --insecure in a network that"
                " you trust"
            )
        found += stage
    return found


def own_name(tls: TlsConfig) -> str:
    """Returns the name that this rank's certificate is for, among those of workers; an empty text
    without one, or if other ranks show none."""
    if not tls.identifies_clients or tls.cert is None:
        return ""
    first, end, _ = Path(tls.cert).read_bytes().partition(b"-----END CERTIFICATE-----")
    names = sorted(name.decode() for name in dns_names(first + end))
    return tls.peer_names.find(WORKER, names) or ""


def host_of(address: str) -> str:
    """Returns the host of an address; ranks on Unix sockets have one and the same."""
    return "" if address.startswith("unix:") else address.rpartition(":")[0].strip("[]")


def _host_towards(host: str, port: int) -> str:
    """Returns the address of this machine that a packet to a host would come from."""
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # which sends nothing
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ValueError(
            f"the host of rank 0, {host}, is unknown here: {error.strerror or error}; give"
            " --rank-host"
        ) from None


def _torchrun(environment: Mapping[str, str]) -> RankPlace | None:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys():
        return None
    size = _number(environment, "WORLD_SIZE")
    return RankPlace(
        "torchrun",
        _number(environment, "RANK"),
        size,
        environment["MASTER_ADDR"],
        is_one_host=environment.get("LOCAL_WORLD_SIZE") == str(size),
        local_rank=_number(environment, "LOCAL_RANK", default="0"),
        first_name=environment.get(FIRST_NAME, ""),
    )


def _leader_worker_set(environment: Mapping[str, str]) -> RankPlace | None:
    if not {"LWS_WORKER_INDEX", "LWS_GROUP_SIZE", "LWS_LEADER_ADDRESS"} <= environment.keys():
        return None
    size = _number(environment, "LWS_GROUP_SIZE")
    return RankPlace(
        "the LeaderWorkerSet",
        _number(environment, "LWS_WORKER_INDEX"),
        size,
        environment["LWS_LEADER_ADDRESS"],
        is_one_host=size == 1,
    )


def _slurm(environment: Mapping[str, str]) -> RankPlace | None:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    if nodes is None or not {"SLURM_PROCID", "SLURM_NTASKS"} <= environment.keys():
        return None
    num_nodes = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_JOB_NUM_NODES")
    return RankPlace(
        "Slurm",
        _number(environment, "SLURM_PROCID"),
        _number(environment, "SLURM_NTASKS"),
        first_of_nodes(nodes),
        is_one_host=num_nodes == "1",
        local_rank=_number(environment, "SLURM_LOCALID", default="0"),
    )


def _number(environment: Mapping[str, str], name: str, *, default: str | None = None) -> int:
    text = environment[name] if default is None else environment.get(name, default)
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r} in the environment; it must be a number")
    return int(text)
