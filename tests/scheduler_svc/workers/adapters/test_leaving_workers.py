"""Loading an adapter while workers leave."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from signalbox_contract.errors import NotFound, Unavailable
from signalbox_contract.model import Adapter
from signalbox_scheduler.workers.adapters.cluster_adapters import ClusterAdapters
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from tests.scheduler_svc.make import MODEL


class Worker:
    """A step loop, and the client that loads its worker's adapters."""

    def __init__(self, name: str, *, has_folder: bool = True) -> None:
        self.worker_name = name
        self.has_folder = has_folder
        self.loaded: set[Adapter] = set()
        self.on_copy: Callable[[], None] = lambda: None

    async def load(self, name: str, path: str, *, loaded_at_ns: int) -> Adapter:
        if not self.has_folder:
            raise NotFound("no such folder")
        adapter = Adapter(name=name, sha256="a" * 64, path=path, loaded_at_ns=loaded_at_ns)
        self.loaded.add(adapter)
        return adapter

    async def copy(self, adapter: Adapter, to: "Worker") -> None:
        self.on_copy()
        to.loaded.add(adapter)

    async def unload(self, adapter: Adapter) -> None:
        self.loaded.discard(adapter)


async def load_with(workers: list[Worker], leaving: list[Worker]) -> tuple[Adapter, Cluster]:
    """Loads an adapter whose files the first worker sends; others leave during the first copy."""
    cluster = Cluster()
    loading = ClusterAdapters(cluster)
    for worker in workers:
        async with loading.joining(cast(Any, worker), cast(StepLoop, worker), MODEL) as model:
            cluster.serve(model)

    def leave() -> None:
        for one in leaving:
            loading.leave(cast(StepLoop, one))

    workers[0].on_copy = leave
    try:
        return await loading.load("sql", "sql"), cluster
    finally:
        await loading.close()


def test_a_worker_that_leaves_before_it_is_sent_the_files_is_not_needed() -> None:
    first = Worker("first")
    sent = [Worker(name, has_folder=False) for name in ("second", "third")]
    adapter, cluster = asyncio.run(load_with([first, *sent], [sent[1]]))
    assert cluster.model is not None
    assert cluster.model.adapters == (adapter,)
    assert sent[0].loaded == first.loaded == {adapter}
    cluster.check()


def test_an_adapter_that_all_workers_leave_with_is_not_served() -> None:
    workers = [Worker("first"), Worker("second", has_folder=False)]
    with pytest.raises(Unavailable, match="the workers have left"):
        asyncio.run(load_with(workers, workers))
