"""A Ray cluster of three nodes of two CPUs each, on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
    return cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES, **options)


def a_worker_node(cluster: Any) -> Any:
    """Returns a node that is not the head."""
    return next(iter(cluster.worker_nodes))
