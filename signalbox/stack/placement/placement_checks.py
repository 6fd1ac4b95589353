"""Checks that a cluster can hold a worker's placement group, now or once nodes are added.

It reads what Ray says of itself, and needs no Ray.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

_OF_ONE_NODE = re.compile(r"node_[0-9a-f]{56}")


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


def reported_types(status: bytes) -> list[str] | None:
    """Returns the types of nodes in what an autoscaler of version 1 writes; None before it has
    looked at nodes."""
    report = json.loads(status).get("autoscaler_report") or {}
    return [*report["node_type_mapping"].values()] if report.get("node_type_mapping") else None


def has_types(node_types: Iterable[str]) -> bool:
    """Returns whether an autoscaler has types of nodes to add.

    What Ray runs beside a cluster that was set up by hand, which adds none, calls each node a type
    of its own, by its id.
    """
    return not all(_OF_ONE_NODE.fullmatch(one) for one in node_types)
