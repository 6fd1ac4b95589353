"""A router between a scheduler that does what the tests say, and a client."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.apis.inference.servicer import SERVICE_NAME
from signalbox_router.config import RouterConfig
from signalbox_router.main import Router
from tests.router.fakes import (
    MAX_MODEL_LEN,
    FakeScheduler,
    finished,
    ids_of,
    request_finished,
    step,
)
from tests.waiting import EVENT_S, eventually

StatusCode = grpc.StatusCode


Outputs = Iterable[scheduler_pb2.RequestUpdates]


class Stack:
    """A router between a fake scheduler and a client."""

    def __init__(self, scheduler: FakeScheduler, router: Router, address: str) -> None:
        self.scheduler = scheduler
        self.router = router
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)
        self.client = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.health = health_pb2_grpc.HealthStub(self.channel)

    async def wait_serving(self, serving: bool = True) -> None:
        wanted = health_pb2.HealthCheckResponse.SERVING
        async with asyncio.timeout(EVENT_S):
            async for answer in self.health.Watch(
                health_pb2.HealthCheckRequest(service=SERVICE_NAME)
            ):
                if (answer.status == wanted) is serving:
                    return

    async def generate(self, **fields: Any) -> list[pb.GenerateResponse]:
        return [message async for message in self.client.Generate(make_generate(**fields))]

    async def added(self, count: int = 1) -> scheduler_pb2.Request:
        """Waits until the scheduler has so many requests or attempts; returns the last."""
        await self.scheduler.wait_until(lambda: len(self.scheduler.added) >= count)
        return self.scheduler.added[-1]

    async def check_nothing_is_left(self) -> None:
        await eventually(
            lambda: not self.router.live.num_live and not self.router.schedulers.num_live
        )


def make_generate(**fields: Any) -> pb.GenerateRequest:
    if "token_ids" not in fields:
        fields.setdefault("text", "The capital of France is")
    return pb.GenerateRequest(**fields)


def make_config(*scheduler_addresses: str, **changes: Any) -> RouterConfig:
    """Returns the configuration of a router on free ports; without `http_port` it serves no
    HTTP."""
    fields: dict[str, Any] = {
        "grpc_port": 0,
        "http": "http_port" in changes,
        "scheduler": ",".join(scheduler_addresses),
        "model_poll_s": 0.05,
    }
    return RouterConfig(**fields | changes)


@contextlib.asynccontextmanager
async def make_stack(
    script: Callable[[scheduler_pb2.Request], Outputs] = lambda add: (),
    *,
    files: dict[str, bytes] | None = None,
    max_model_len: int = MAX_MODEL_LEN,
    sampling_defaults: common_pb2.SamplingDefaults | None = None,
    adapters: Iterable[common_pb2.Adapter] = (),
    pooling: common_pb2.PoolingModel | None = None,
    scheduler_port: int = 0,
    **config: Any,
) -> AsyncIterator[Stack]:
    scheduler = FakeScheduler(script, port=scheduler_port)
    scheduler.files = files or scheduler.files
    scheduler.max_model_len = max_model_len
    scheduler.sampling_defaults = sampling_defaults or scheduler.sampling_defaults
    scheduler.adapters = list(adapters)
    scheduler.pooling = pooling
    async with routed(scheduler, make_config(await scheduler.start(), **config)) as stack:
        await stack.wait_serving()
        yield stack
        await stack.check_nothing_is_left()


@contextlib.asynccontextmanager
async def routed(scheduler: FakeScheduler, config: RouterConfig) -> AsyncIterator[Stack]:
    """Runs a router whether its scheduler serves or not; stops both."""
    router = Router(config)
    stack = Stack(scheduler, router, f"127.0.0.1:{await router.start()}")
    try:
        yield stack
    finally:
        await stack.channel.close()
        await router.drain(grace_s=0)
        await router.stop()
        await scheduler.stop()


def saying(*texts: str) -> Callable[[scheduler_pb2.Request], Outputs]:
    """Returns a script that answers with one step for each text."""

    def script(add: scheduler_pb2.Request) -> Outputs:
        for text in texts[:-1]:
            yield step((add.handle, 0, ids_of(text)))
        yield step((add.handle, 0, ids_of(texts[-1])), **finished(add.handle))

    return script


def drafting(**counts: int) -> Callable[[scheduler_pb2.Request], Outputs]:
    """Returns a script that answers "one" with counts of drafts, unless the request refuses
    them."""

    def script(add: scheduler_pb2.Request) -> Outputs:
        ends = finished(add.handle)
        if not add.no_speculation:
            use = scheduler_pb2.SpeculationUse(**counts)
            ends["requests"] = [request_finished(add.handle, speculation=use)]
        yield step((add.handle, 0, ids_of("one")), **ends)

    return script


def text_of(answers: Iterable[pb.GenerateResponse]) -> str:
    """Returns what a stream says, all its sequences together."""
    return "".join(output.text for answer in answers for output in answer.outputs)
