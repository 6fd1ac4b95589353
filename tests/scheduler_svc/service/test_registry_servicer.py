"""The lease of a worker: however its stream ends, the worker is gone with it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from signalbox_contract.step_result import StepResult
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.service.registry_servicer import WorkerRegistryServicer
from signalbox_scheduler.workers.adapters.cluster_adapters import ClusterAdapters
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.engine import Engine
from tests.scheduler_svc.make import make_scheduler
from tests.waiting import eventually, run_ready_tasks


class SilentWorker:
    """Answers nothing, and takes its time to be let go."""

    async def send(self, plan: StepPlan) -> None: ...

    async def read(self) -> StepResult:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
        raise AssertionError("unreachable")


async def no_heartbeats() -> AsyncIterator[pb.RegisterRequest]:
    await asyncio.Event().wait()
    yield pb.RegisterRequest()


async def test_a_worker_leaves_even_if_its_handler_is_cancelled_while_it_ends() -> None:
    cluster = Cluster()
    adapters = ClusterAdapters(cluster)
    servicer = WorkerRegistryServicer(cluster, SchedulerConfig(port=0), adapters=adapters)
    scheduler = make_scheduler(admission=cluster.admission)
    engine = Engine(
        worker=SilentWorker(), scheduler=scheduler, send_updates=cluster.requests.send_updates
    )
    answers = servicer._lease(engine, no_heartbeats())
    assert (await anext(answers)).HasField("accepted")
    lease = asyncio.ensure_future(anext(answers))
    await run_ready_tasks()
    assert cluster.step_loops == [engine.loop]
    for _ in range(2):  # its heartbeats stop, then its connection closes
        lease.cancel()
        await run_ready_tasks()
    with contextlib.suppress(asyncio.CancelledError):
        await lease
    await eventually(lambda: not cluster.step_loops)
