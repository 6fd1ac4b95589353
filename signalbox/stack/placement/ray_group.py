"""The resources of one worker on Ray: a placement group with a bundle for each pipeline stage.

Tensor parallelism never leaves a node, since a bundle is on one.
"""

import logging
import time
from collections.abc import Sequence
from threading import Event
from typing import Any

import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.experimental.internal_kv import _internal_kv_get
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from signalbox.stack.placement.placement_checks import fault_of, has_types, reported_types
from signalbox.stack.processes.child_processes import WAITING, announce

logger = logging.getLogger(__name__)


_AT_ONCE_S = 1.0
"""Seconds in which Ray reserves resources that are free."""
_LOOK_S = 0.5
_REPORT_S = 10.0
"""Twice the time between two reports of an autoscaler."""


class NoRoom(RuntimeError):
    """The cluster does not have the resources of a worker."""


def make_group(
    bundles: list[dict[str, float]], stopping: Event, *, strategy: str, timeout_s: float
) -> PlacementGroup | None:
    """Returns a placement group that Ray has reserved, or None if it is to stop before. Raises
    NoRoom that names what is missing.

    A group that no node could ever hold is refused at once, since Ray itself would wait silently;
    with an autoscaler the group that waits is what makes nodes come.
    """
    fault = fault_of(bundles, [one["Resources"] for one in ray.nodes() if one["Alive"]], strategy)
    if fault and not has_autoscaler():
        raise NoRoom(f"{fault}; no autoscaler adds nodes to this cluster")
    until = time.monotonic() + timeout_s
    group = placement_group(bundles, strategy=strategy)
    ready = group.ready()
    if not fault and ray.wait([ready], timeout=_AT_ONCE_S)[0]:
        return group
    needed = f"{_shown(bundles)} ({strategy})"
    what = f"an autoscaler to add nodes for {needed}" if fault else f"Ray to have {needed}"
    logger.info("the worker waits up to %g s for %s; %s", timeout_s, what, fault or _free(bundles))
    announce(WAITING, f"waits up to {timeout_s:g} s for {what}")  # for `top`
    while not (is_there := bool(ray.wait([ready], timeout=_LOOK_S)[0])):
        if stopping.is_set() or time.monotonic() > until:
            break
    announce(WAITING, "")
    if is_there:
        return group
    remove_placement_group(group)
    if stopping.is_set():
        return None
    raise NoRoom(_refusal(bundles, needed, fault, timeout_s))


def _refusal(bundles: Sequence[dict[str, float]], needed: str, fault: str, timeout_s: float) -> str:
    if fault:
        return (
            f"no autoscaler has added nodes for {needed} within {timeout_s:g} s; {fault}: raise"
            " --placement-timeout, or the autoscaler's bounds and types of nodes"
        )
    return (
        f"Ray had no room for {needed} within {timeout_s:g} s; {_free(bundles)}: raise"
        " --placement-timeout, or end other work"
    )


def has_autoscaler() -> bool:
    """Returns whether an autoscaler, of version 1 or 2, adds nodes to the cluster.

    Ray runs one beside every cluster; in one that was set up by hand it only reports. Waits for the
    first report of a cluster that has just started.
    """
    until = time.monotonic() + _REPORT_S
    while (node_types := _node_types()) is None and time.monotonic() < until:
        time.sleep(_LOOK_S)
    return has_types(node_types or ())


def _node_types() -> list[str] | None:
    """Returns the types of nodes in the autoscaler's report; None before the first."""
    if (status := _internal_kv_get(DEBUG_AUTOSCALING_STATUS)) is not None:
        return reported_types(status)
    found = get_cluster_status(ray.get_runtime_context().gcs_address)
    if not int(found.stats.autoscaler_version or 0):
        return None
    return [node.ray_node_type_name for node in (*found.active_nodes, *found.idle_nodes)]


def _shown(bundles: Sequence[dict[str, float]]) -> str:
    return " + ".join(
        "{" + ", ".join(f"{name}: {count:g}" for name, count in bundle.items()) + "}"
        for bundle in bundles
    )


def _free(bundles: Sequence[dict[str, float]]) -> str:
    free: dict[str, Any] = ray.available_resources()
    return "free are " + ", ".join(f"{float(free.get(name, 0)):g} {name}" for name in bundles[0])
