"""What a cluster could hold, and whether an autoscaler adds nodes to it."""

import json

import pytest

from signalbox.stack.placement.placement_checks import fault_of, has_types, reported_types

NODE = {"CPU": 2.0}


@pytest.mark.parametrize(
    ("bundle", "number", "strategy", "fault"),
    [
        ({"CPU": 1.0}, 6, "PACK", ""),
        ({"CPU": 1.0}, 2, "STRICT_PACK", ""),
        ({"CPU": 1.0}, 9, "PACK", "the worker takes 9 CPU, and all nodes together have 6"),
        ({"CPU": 3.0}, 1, "PACK", "each stage takes 3 CPU of one node, and the largest node has 2"),
        ({"GPU": 1.0}, 1, "PACK", "each stage takes 1 GPU of one node, and the largest node has 0"),
        (
            *({"CPU": 1.0}, 3, "STRICT_PACK"),
            "the worker takes 3 CPU of one node, and the largest node has 2",
        ),
    ],
)
def test_what_empty_nodes_could_not_hold_is_named(
    bundle: dict[str, float], number: int, strategy: str, fault: str
) -> None:
    assert fault_of([bundle] * number, [NODE] * 3, strategy) == fault


def report(*node_types: str) -> bytes:
    """Of an autoscaler of version 1."""
    nodes = {f"10.0.0.{number}": one for number, one in enumerate(node_types)}
    return json.dumps({"time": 1.0, "autoscaler_report": {"node_type_mapping": nodes}}).encode()


@pytest.mark.parametrize(
    ("status", "is_there"),
    [
        (report(f"node_{0:056x}", f"node_{1:056x}"), False),
        (report("headgroup"), True),
        (report("node_of_gpus", f"node_{1:056x}"), True),
    ],
)
def test_an_autoscaler_is_known_by_its_types_of_nodes(status: bytes, is_there: bool) -> None:
    node_types = reported_types(status)
    assert node_types
    assert has_types(node_types) is is_there


@pytest.mark.parametrize("status", [b'{"time": 1.0}', b'{"autoscaler_report": null}', report()])
def test_an_autoscaler_that_has_not_looked_at_nodes_has_not_reported(status: bytes) -> None:
    assert reported_types(status) is None
