"""A thousand adapters are loaded, listed, given to a worker that joins, used and unloaded."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_scheduler.workers.adapters import cluster_adapters
from tests.integration.adapters.loading import (
    check_tokens,
    listed,
    load,
    loaded_on,
    make_stack,
    refused,
    unload,
    until_all_have,
    write_adapter,
)
from tests.integration.stack import Router, running_router, until_workers

pytestmark = pytest.mark.slow

NUM_ADAPTERS = 1000
NUM_AT_A_TIME = 16


async def each(ask: Any, names: list[str]) -> None:
    """Asks for each name, a few at a time."""
    left = iter(names)

    async def some() -> None:
        for name in left:
            await ask(name)

    await asyncio.gather(*(some() for _ in range(NUM_AT_A_TIME)))


async def test_a_thousand_adapters_are_served_and_one_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_adapters, "MAX_ADAPTERS", NUM_ADAPTERS)
    names = [f"a{number:03}" for number in range(NUM_ADAPTERS)]
    shas = [write_adapter(tmp_path / name, name) for name in names]
    write_adapter(tmp_path / "more")
    served = list(zip(names, shas, strict=True))
    async with make_stack(tmp_path) as stack:
        client: Router = stack.client
        await each(lambda name: load(client, name, name), names)
        loading = load(client, "more", "more")
        details = await refused(loading, grpc.StatusCode.RESOURCE_EXHAUSTED)
        assert "1000 adapters are loaded; unload one" in details
        assert await listed(client) == [(name, sha256, False) for name, sha256 in served]
        model = (await client.stub.GetModel(pb.GetModelRequest())).model
        assert model.ByteSize() < 1 << 20
        async with running_router(stack.scheduler.address) as service:
            assert [one.name for one in service.schedulers.models.of().adapters] == names
        async with stack.worker() as third:
            await until_workers(stack.scheduler, 3)
            assert loaded_on(third) == set(served)
            for one in stack.workers:
                await one.kill()
            await until_workers(stack.scheduler, 1)
            for handle in (0, 499, 999):
                await check_tokens(client, handle, shas[handle])
            await unload(client, names[0])
            await until_all_have([third], *served[1:])
            await load(client, "more", "more")
            await each(lambda name: unload(client, name), [*names[1:], "more"])
            await until_all_have([third])
        assert await listed(client) == []
