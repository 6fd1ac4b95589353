"""The launcher's stream and the orders that wait for its answers."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from contract.errors import Unavailable
from protos.scheduler.v1 import scheduler_pb2 as pb
from scheduler_svc.cluster import Cluster
from scheduler_svc.service.launcher_servicer import LauncherLink


async def silent() -> AsyncIterator[pb.LaunchWorkersRequest]:
    """A launcher that never says anything."""
    await asyncio.Event().wait()
    yield pb.LaunchWorkersRequest()


async def test_operators_hear_that_the_launcher_ended_though_one_of_them_left_just_then() -> None:
    link = LauncherLink(Cluster())
    stream = link.hold(silent())
    first = asyncio.create_task(anext(stream))
    asking = pb.ScaleWorkersRequest(min_workers=2, max_workers=2)
    await asyncio.sleep(0)
    leaves, stays = (asyncio.create_task(link.scale(asking)) for _ in range(2))
    assert (await first).min_workers == 2
    leaves.cancel()
    await stream.aclose()
    with pytest.raises(Unavailable, match="the launcher has ended"):
        await stays
    assert leaves.cancelling()
    assert link.state is None
