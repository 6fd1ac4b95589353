"""A Ray cluster of three nodes of two CPUs each, on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.waiting import EVENT_S

STORE_BYTES = 80 << 20
NUM_NODES = 3


@contextmanager
def three_nodes() -> Iterator[Any]:
    """Yields the cluster; its first node is the head."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 2,
            "wait": False,
            "object_store_memory": STORE_BYTES,
            "include_dashboard": False,
        },
    )
    try:
        for _ in range(NUM_NODES - 1):
            add_node(made)
        yield made
    finally:
        made.shutdown()


def add_node(cluster: Any, **options: Any) -> Any:
    node = cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, wait=False, **options)
    cluster.wait_for_nodes(EVENT_S)  # Ray's own wait is of 30 s
    return node


def a_worker_node(cluster: Any) -> Any:
    """Returns a node that is not the head."""
    return next(iter(cluster.worker_nodes))
