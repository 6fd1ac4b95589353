"""The resources of one worker on Ray: a placement group with a bundle for each pipeline stage.

Tensor parallelism never leaves a node, since a bundle is on one.
"""

import logging
from collections.abc import Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from signalbox.stack.child_processes import WAITING, announce

logger = logging.getLogger(__name__)


_AT_ONCE_S = 1.0
"""Seconds in which Ray reserves resources that are free."""


class NoRoom(RuntimeError):
    """The cluster does not have the resources of a worker."""


def make_group(
    bundles: list[dict[str, float]], *, strategy: str, timeout_s: float
) -> PlacementGroup:
    """Returns a placement group that Ray has reserved. Raises NoRoom that names what is missing.

    A group that no node could ever hold is refused at once: Ray itself would wait silently.
    """
    fault = fault_of(bundles, [one["Resources"] for one in ray.nodes() if one["Alive"]], strategy)
    if fault:
        raise NoRoom(fault)
    group = placement_group(bundles, strategy=strategy)
    ready = group.ready()
    if ray.wait([ready], timeout=_AT_ONCE_S)[0]:
        return group
    awaited = f"waits up to {timeout_s:g} s for Ray to have {_shown(bundles)} ({strategy})"
    logger.info("the worker %s; free are %s", awaited, _free(ray.available_resources(), bundles))
    announce(WAITING, awaited)  # for `top`
    is_there = bool(ray.wait([ready], timeout=max(0.0, timeout_s - _AT_ONCE_S))[0])
    announce(WAITING, "")
    if not is_there:
        remove_placement_group(group)
        raise NoRoom(
            f"Ray had no room for {_shown(bundles)} ({strategy}) within {timeout_s:g} s; free are"
            f" {_free(ray.available_resources(), bundles)}: raise --placement-timeout, or end other"
            " work"
        )
    return group


def fault_of(
    bundles: Sequence[dict[str, float]], nodes: Sequence[dict[str, Any]], strategy: str
) -> str:
    """Returns why the nodes could not hold the bundles if they were empty; an empty text if they
    may.

    Args:
        nodes: resources of each node.
    """
    needed = [_sum(bundles)] if strategy == "STRICT_PACK" else list(bundles)
    for name in bundles[0]:
        most = max((float(node.get(name, 0)) for node in nodes), default=0.0)
        largest = max(bundle[name] for bundle in needed)
        if largest > most:
            what = "the worker" if strategy == "STRICT_PACK" else "each stage"
            return f"{what} takes {largest:g} {name} of one node, and the largest node has {most:g}"
        have, total = sum(float(node.get(name, 0)) for node in nodes), _sum(bundles)[name]
        if total > have:
            return f"the worker takes {total:g} {name}, and all nodes together have {have:g}"
    return ""


def _sum(bundles: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: sum(bundle[name] for bundle in bundles) for name in bundles[0]}


def _shown(bundles: Sequence[dict[str, float]]) -> str:
    return " + ".join(
        "{" + ", ".join(f"{name}: {count:g}" for name, count in bundle.items()) + "}"
        for bundle in bundles
    )


def _free(free: dict[str, Any], bundles: Sequence[dict[str, float]]) -> str:
    return ", ".join(f"{float(free.get(name, 0)):g} {name}" for name in bundles[0])
