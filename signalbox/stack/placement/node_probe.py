"""Probes a node of a Ray cluster before a rank starts on it.

Ray sends the source of this module to the node, which may lack our packages: it imports nothing of
ours.
"""

import socket
from typing import NamedTuple


class RankNode(NamedTuple):
    """The node of a stage."""

    host: str
    """Address by which Ray knows it."""
    name: str
    """Its host name."""
    versions: str
    fault: str
    """Reason why our package cannot be imported; empty if it can."""


def probe() -> RankNode:
    """Returns the node that this runs on."""
    import ray

    host = ray.util.get_node_ip_address()
    try:
        from signalbox.stack.placement import rank_actor  # noqa: F401
        from signalbox_worker.runner.ranks.rank_starts import versions
    except ImportError as error:
        return RankNode(host, socket.gethostname(), "", str(error))
    return RankNode(host, socket.gethostname(), versions(), "")


def fault_of(nodes: "list[RankNode]", expected: str) -> str:
    """Returns which nodes lack our package or have other versions of what ranks must have alike."""
    lacking = {node for node in nodes if node.fault}
    others = {node for node in nodes if not node.fault and node.versions != expected}
    if not lacking and not others:
        return ""
    told = [f"{_shown(node)} cannot import Signalbox ({node.fault})" for node in lacking]
    told += [f"{_shown(node)} has {node.versions}" for node in others]
    return f"{'; '.join(sorted(told))}; this machine has {expected}: install the same everywhere"


def _shown(node: RankNode) -> str:
    return node.host if node.host == node.name else f"{node.host} ({node.name})"
