"""Addresses on which ranks on Ray listen, so that the scheduler can call them. Needs no Ray."""

from signalbox.stack.placement.node_probe import RankNode
from signalbox_rpc.transport.tls import is_loopback
from signalbox_worker.service.worker_settings import WorkerSettings


def host_of(settings: WorkerSettings, node: RankNode) -> str:
    """Returns what a rank listens on for the scheduler: by default the address of its node, unless
    the scheduler itself is on loopback."""
    if "host" in settings.model_fields_set or _is_on_loopback(settings.scheduler):
        return settings.host
    return node.host


def fault_of(settings: WorkerSettings, node: RankNode, *, is_here: bool) -> str:
    """Returns why rank 0 and the scheduler do not reach each other; an empty text if they may.

    Args:
        node: of rank 0.
        is_here: True if the driver runs on it.
    """
    if _is_on_loopback(settings.scheduler):
        return (
            ""
            if is_here
            else (
                f"rank 0 is on {node.host}, from where {settings.scheduler} is no scheduler's"
                " address; let the scheduler listen on one that nodes reach (--scheduler-host of"
                " serve, --host and --scheduler of services that are started one by one)"
            )
        )
    listens_here = "host" in settings.model_fields_set and is_loopback(settings.host)
    if listens_here and not settings.advertise:
        return (
            f"the scheduler at {settings.scheduler} cannot call rank 0 on {settings.host} of"
            f" {node.host}; leave out --host, and ranks listen on the addresses of their nodes"
        )
    return ""


def _is_on_loopback(address: str) -> bool:
    return is_loopback(address.rpartition(":")[0].strip("[]"))
