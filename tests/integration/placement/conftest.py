"""The Ray cluster of all tests that need one, in the same process of a run."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.placement.ray_cluster import NUM_NODES, add_node, three_nodes
from tests.waiting import EVENT_S


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Any]:
    with three_nodes() as made:
        yield made


@pytest.fixture
def cluster(shared_cluster: Any) -> Iterator[Any]:
    """Three nodes; a test that removes or adds some leaves as many."""
    shared_cluster.wait_for_nodes(EVENT_S)
    yield shared_cluster
    num_lost = NUM_NODES - 1 - len(shared_cluster.worker_nodes)
    for _ in range(num_lost):
        add_node(shared_cluster)
    assert num_lost == 0
