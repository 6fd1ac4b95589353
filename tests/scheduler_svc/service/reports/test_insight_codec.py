"""What the scheduler tells of a request's blocks, by group of layers."""

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup, decode_group
from signalbox_protos.scheduler.v1 import explain_pb2 as pb
from signalbox_scheduler.service.reports.insight_codec import explain, stats
from signalbox_scheduler.workers.cluster import Cluster
from tests.scheduler_svc.make import Loop, join_worker, make_cluster
from tests.scheduler_svc.routers import Router, add_request, turn

WINDOW = CacheGroup(kind="window", window=9)


def begin(groups: tuple[CacheGroup, ...]) -> tuple[Cluster, Loop]:
    """Returns a worker of such groups that has a request of two sequences, behind its window."""
    cluster, router = make_cluster(), Router()
    _, loop = join_worker(cluster, groups=groups)
    add_request(cluster, router, 1, max_tokens=40, n=2)
    for _ in range(25):
        turn(cluster, loop)
    return cluster, loop


def explained(cluster: Cluster) -> pb.ExplainResponse:
    return explain(pb.ExplainRequest(request_id="r1"), cluster, history=8)


def test_blocks_are_counted_by_group_and_each_once() -> None:
    groups = (FULL_GROUP, WINDOW, WINDOW)
    cluster, loop = begin(groups)
    (worker,) = stats(cluster).workers
    assert tuple(map(decode_group, worker.groups)) == groups
    (group,) = loop.scheduler.running
    columns = [set[int]() for _ in groups]
    for seq in group.sequences:
        for index, block in enumerate(seq.block_table):
            columns[index % 3] |= {block} - {NO_BLOCK}
    told = explained(cluster)
    assert tuple(decode_group(one.group) for one in told.held_blocks) == groups
    full, *windows = counts = [one.num_blocks for one in told.held_blocks]
    assert counts == list(map(len, columns))
    assert full > max(windows) > 0
    words = f"groups of layers: {full} of full, {sum(windows)} of 2 x window of 9."
    assert any(line.endswith(words) for line in told.text.summary)


@pytest.mark.parametrize("groups", [(FULL_GROUP,), (FULL_GROUP, WINDOW)])
def test_nothing_is_said_of_one_group_or_of_what_has_ended(groups: tuple[CacheGroup, ...]) -> None:
    cluster, loop = begin(groups)
    assert any("groups of layers" in line for line in explained(cluster).text.summary) == (
        WINDOW in groups
    )
    while loop.scheduler.running:
        turn(cluster, loop)
    told = explained(cluster)
    assert told.state == pb.REQUEST_STATE_ENDED
    assert not told.held_blocks
    assert not any("groups of layers" in line for line in told.text.summary)


def test_a_prefix_that_states_end_is_told_as_one() -> None:
    cluster, _ = begin((FULL_GROUP, CacheGroup(kind="state", state_blocks=3)))
    assert any("No snapshot of the states" in line for line in explained(cluster).text.summary)
    cluster, _ = begin((FULL_GROUP,))
    assert not any("snapshot" in line for line in explained(cluster).text.summary)
