"""`signalbox doctor --placement environment`: the links between the ranks that others start.

Each rank runs the command, as it would run `signalbox worker`; rank 0 prints what all have found.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from signalbox.client.tables import duration, make_table, right, show
from signalbox.settings.environment import ENV_PREFIX
from signalbox_rpc.interceptors.peer_roles import PeerNames
from signalbox_rpc.transport.tls import TlsConfig

if TYPE_CHECKING:
    from signalbox_worker.runner.ranks.rank_network import RankNetwork, RankPlace

_FLAGS = {
    "rank_host": ("HOST", "as for a worker: name, address or interface that this rank listens on"),
    "rank_port": ("N", "as for a worker: port of rank 0; rank R has the one R above it"),
    "tls_cert": ("FILE", "PEM file: this rank's certificate and chain, for the role worker"),
    "tls_key": ("FILE", "PEM file: its private key"),
    "tls_ca": ("FILE", "PEM file: certificate authority of the other ranks"),
    "tls_client_ca": ("FILE", "PEM file: certificate authority of ranks that call this one"),
    "allow_peer_names": ("ROLE=NAME,...", "names in the certificates of ranks, as for a worker"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLink:
    """The link from one rank to another."""

    rank: int
    address: str
    other_rank: int
    other_address: str
    round_trip_s: float
    bytes_per_s: int


def add_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("links between the ranks of a worker")
    group.add_argument(
        "--placement",
        choices=["environment"],
        help="measure the links between the ranks that torchrun, Slurm or a LeaderWorkerSet starts,"
        " each with this command, and show nothing else; no model is read",
    )
    for name, (metavar, text) in _FLAGS.items():
        variable = ENV_PREFIX + name.upper()
        group.add_argument(
            "--" + name.replace("_", "-"),
            metavar=metavar,
            type=int if name == "rank_port" else str,
            default=os.environ.get(variable),
            help=f"{text} (env {variable})",
        )
    group.add_argument(
        "--insecure",
        action="store_true",
        help="let ranks talk without certificates, in a network that you trust",
    )


def run(options: dict[str, Any]) -> None:
    """Prints the links on rank 0; other ranks obey it and do not return.

    Raises ValueError, BindError or TlsError for an arrangement that no worker could have, and
    ConnectionError, TimeoutError or DeviceLost that names the ranks which cannot meet.
    """
    from signalbox_worker.runner.ranks.rank_network import read_place

    place = read_place(os.environ)
    if place.size == 1:
        raise ValueError(
            f"{place.launcher} has started one rank, which has no links; start several"
        )
    network = _network(options, place)
    if place.rank:
        from signalbox_worker.runner.ranks.follower_process import follow_check

        follow_check(place.rank, network)
    found = _measure(network, place.size)
    if options["json"]:
        print(json.dumps({"links": [asdict(one) for one in found]}))
    else:
        _print(found)


def _network(options: dict[str, Any], place: "RankPlace") -> "RankNetwork":
    from signalbox_worker.runner.ranks.rank_network import RankNetwork
    from signalbox_worker.service.worker_settings import PlacementSettings

    tls = TlsConfig(
        cert=options["tls_cert"],
        key=options["tls_key"],
        ca=options["tls_ca"],
        client_ca=options["tls_client_ca"],
        peer_names=PeerNames.parse(options["allow_peer_names"] or ""),
        insecure=options["insecure"],
    )
    port = options["rank_port"] or PlacementSettings.model_fields["rank_port"].default
    return RankNetwork.of(place, host=options["rank_host"], port=port, tls=tls)


def _measure(network: "RankNetwork", num_ranks: int) -> list[FoundLink]:
    from signalbox_worker.runner.ranks.launchers import AwaitedRanks
    from signalbox_worker.runner.ranks.rank_network import JOIN_S
    from signalbox_worker.runner.ranks.rank_pool import RankPool

    others = RankPool(num_ranks, AwaitedRanks(network, join_s=JOIN_S))
    try:
        others.wait_until_joined()
        others.meet()
        measured = others.measure()
    except BaseException as error:
        others.close(f"rank 0 ends: {error}")
        raise
    addresses = [one.address for one in others.addresses]
    others.close()
    return [
        FoundLink(
            rank=rank,
            address=addresses[rank],
            other_rank=link.rank,
            other_address=addresses[link.rank],
            round_trip_s=link.round_trip_ns / 1e9,
            bytes_per_s=link.bytes_per_s,
        )
        for rank, of_rank in enumerate(measured)
        for link in of_rank
    ]


def _print(found: list[FoundLink]) -> None:
    table = make_table(
        right("rank"), "at", right("to rank"), "at", right("round trip"), right("MB/s")
    )
    for one in found:
        table.add_row(
            str(one.rank),
            one.address,
            str(one.other_rank),
            one.other_address,
            duration(one.round_trip_s),
            f"{one.bytes_per_s / 1e6:,.0f}",
        )
    show(table)
