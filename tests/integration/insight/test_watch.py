"""What an operator watches through a router: the frames of its schedulers, and explanations."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx2
import pytest
from google.protobuf import json_format

from signalbox_protos.inference.v1 import inference_pb2, inference_pb2_grpc
from signalbox_protos.operations.v1 import operations_pb2 as pb
from signalbox_protos.operations.v1 import operations_pb2_grpc
from signalbox_rpc.limits.watchers import MAX_WATCHERS
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.insight.step_observer import UNOBSERVED
from tests.grpc_errors import code_of
from tests.integration.stack import (
    RunningScheduler,
    assert_idle,
    restarted,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.ports import free_port
from tests.router.apis.connect.clients import enclosed, parts_of
from tests.scheduler_svc.watching import Shown, expected_of
from tests.waiting import EVENT_S, eventually

Operations = operations_pb2_grpc.OperationsServiceStub
PATH = "/signalbox.operations.v1.OperationsService"
WORKER = {"num_gpu_blocks": 32, "step_ns": 1_000_000}


class Client:
    """Applies the frames of one stream."""

    def __init__(self, stub: Operations) -> None:
        self.shown: dict[tuple[str, int], Shown] = {}
        self.lost: dict[str, str] = {}
        self.num_full: dict[str, int] = {}
        self.call = stub.Watch(pb.WatchRequest())
        self._task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            scheduler, frame = message.scheduler, message.frame
            self.lost.pop(scheduler, None)
            if message.HasField("lost"):
                self.lost[scheduler] = message.lost
            gone = [key for key in self.shown if key[0] == scheduler]
            if message.HasField("frame") and not frame.is_full:
                gone = [(scheduler, number) for number in frame.left_workers]
                assert scheduler in self.num_full, "the first frame is no full picture"
            for key in gone:
                del self.shown[key]
            self.num_full[scheduler] = self.num_full.get(scheduler, 0) + frame.is_full
            for worker in frame.workers:
                self.shown.setdefault((scheduler, worker.number), Shown()).apply(worker)

    def knows(self, *schedulers: RunningScheduler) -> bool:
        """Says whether the frames have told all that is the case."""
        real = [
            (one.address, expected_of(loop.scheduler))
            for one in schedulers
            for loop in one.cluster.step_loops
        ]
        return [(key[0], one) for key, one in sorted(self.shown.items())] == sorted(
            real, key=lambda pair: pair[0]
        )

    async def end(self) -> grpc.StatusCode:
        """Waits for the end of the stream, and returns its code."""
        await asyncio.wait([self._task], timeout=EVENT_S)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._task
        code: grpc.StatusCode = await self.call.code()
        return code


def is_watched(scheduler: RunningScheduler) -> bool:
    """Says whether steps of a worker are observed."""
    loops = scheduler.cluster.step_loops
    return any(loop.scheduler.observer is not UNOBSERVED for loop in loops)


@contextlib.asynccontextmanager
async def stack(num_schedulers: int = 1) -> AsyncIterator[list[RunningScheduler]]:
    async with contextlib.AsyncExitStack() as exits:
        schedulers = []
        for _ in range(num_schedulers):
            config = SchedulerConfig(port=free_port())
            scheduler = await exits.enter_async_context(running_scheduler(config))
            await exits.enter_async_context(running_worker(scheduler.address, simulated(**WORKER)))
            await until_workers(scheduler, 1)
            schedulers.append(scheduler)
        yield schedulers


async def generate(address: str, request_id: str) -> None:
    params = inference_pb2.SamplingParams(max_tokens=200, ignore_eos=True)
    request = inference_pb2.GenerateRequest(
        text="x" * 40, request_id=request_id, sampling_params=params
    )
    async with open_channel(address) as channel:
        async for _ in inference_pb2_grpc.InferenceServiceStub(channel).Generate(request):
            pass


async def test_a_router_merges_what_its_schedulers_decide_and_explains_requests() -> None:
    async with stack(2) as schedulers:
        first, second = schedulers
        async with (
            running_router(first.address, second.address) as router,
            open_channel(router.server.address) as channel,
        ):
            stub = Operations(channel)
            early = Client(stub)
            await eventually(lambda: early.knows(first, second))
            running = [
                asyncio.create_task(generate(router.server.address, f"mine{i}")) for i in range(6)
            ]
            late = Client(stub)  # the schedulers are still watched by one router
            await asyncio.gather(*running)
            await eventually(lambda: early.knows(first, second) and late.knows(first, second))
            answer = await stub.Explain(pb.ExplainRequest(request_id="mine3"))
            assert answer.explanation.request_id == "mine3"
            named = pb.ExplainRequest(
                request_number=answer.explanation.request_number, scheduler=answer.scheduler
            )
            assert (await stub.Explain(named)).explanation.request_id == "mine3"
            for request, code in (
                (pb.ExplainRequest(request_id="other"), grpc.StatusCode.NOT_FOUND),
                (pb.ExplainRequest(request_id="mine3", scheduler="x:1"), grpc.StatusCode.NOT_FOUND),
                (pb.ExplainRequest(request_number=1), grpc.StatusCode.INVALID_ARGUMENT),
                (pb.ExplainRequest(), grpc.StatusCode.INVALID_ARGUMENT),
            ):
                assert await code_of(stub.Explain(request)) is code
            early.call.cancel()
            late.call.cancel()
            await eventually(lambda: not any(map(is_watched, schedulers)))
            for scheduler in schedulers:
                await assert_idle(scheduler)


async def test_sessions_of_all_schedulers_are_listed_without_their_names() -> None:
    async with (
        stack() as (scheduler,),
        running_router(scheduler.address, f"127.0.0.1:{free_port()}") as router,
        open_channel(router.server.address) as channel,
    ):
        inference = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(
            token_ids=inference_pb2.TokenIds(ids=range(64)), session="my conversation"
        )
        request.sampling_params.max_tokens = 4
        for _ in range(2):
            async for _ in inference.Generate(request):
                pass
        (known,) = scheduler.cluster.requests.sessions.latest(1)
        answer = await Operations(channel).ListSessions(pb.ListSessionsRequest(max_sessions=3))
        one, other = sorted(answer.schedulers, key=lambda found: bool(found.lost))
        assert one.scheduler == scheduler.address and other.lost
        (session,) = one.sessions
        assert len(known.session) == 16 and session.session == known.session[:4]
        assert (session.num_turns, session.total.num_prompt_tokens) == (2, 128)
        assert session.last_turn.num_device_tokens > 0


async def test_a_lost_scheduler_is_named_and_watched_again_when_it_is_back() -> None:
    async with stack() as (scheduler,), contextlib.AsyncExitStack() as exits:
        router = await exits.enter_async_context(running_router(scheduler.address))
        channel = await exits.enter_async_context(open_channel(router.server.address))
        client = Client(Operations(channel))
        await eventually(lambda: client.knows(scheduler))
        async with restarted(scheduler) as another:
            await eventually(lambda: scheduler.address in client.lost)
            await eventually(lambda: not client.lost and client.knows(another))
            await until_workers(another, 1)
            await eventually(lambda: client.knows(another))
            await router.drain(grace_s=EVENT_S)
            assert await client.end() is grpc.StatusCode.UNAVAILABLE


async def test_watchers_are_bounded() -> None:
    async with (
        stack() as (scheduler,),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        clients = [Client(Operations(channel)) for _ in range(MAX_WATCHERS)]
        await eventually(lambda: all(one.num_full for one in clients))
        assert await Client(Operations(channel)).end() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for client in clients:
            client.call.cancel()
        await eventually(lambda: not is_watched(scheduler))


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"host": "0.0.0.0", "insecure": True}, grpc.StatusCode.PERMISSION_DENIED),
        ({"api_key": ("plain",)}, grpc.StatusCode.PERMISSION_DENIED),
        ({}, grpc.StatusCode.NOT_FOUND),
    ],
)
async def test_operators_alone_are_shown_anything(
    settings: dict[str, Any], code: grpc.StatusCode
) -> None:
    async with (
        stack() as (scheduler,),
        running_router(scheduler.address, **settings) as router,
        open_channel(f"127.0.0.1:{router.server.port}") as channel,
    ):
        stub = Operations(channel)
        metadata = (("authorization", "Bearer plain"),)
        explain = stub.Explain(pb.ExplainRequest(request_id="none"), metadata=metadata)
        assert await code_of(explain) is code
        if code is grpc.StatusCode.PERMISSION_DENIED:
            watch = stub.Watch(pb.WatchRequest(), metadata=metadata)
            assert await code_of(watch.read()) is code


async def test_an_operator_with_a_browser_watches_by_connect() -> None:
    async with (
        stack() as (scheduler,),
        running_router(
            scheduler.address, http=True, http_port=0, allowed_origins="https://elsewhere.example"
        ) as router,
    ):
        assert router.http is not None
        await generate(router.server.address, "mine")
        async with httpx2.AsyncClient(base_url=f"http://{router.http.address}") as client:
            answer = await client.post(f"{PATH}/Explain", json={"requestId": "mine"})
            explained = json_format.ParseDict(answer.json(), pb.ExplainResponse())
            assert explained.explanation.request_id == "mine"
            headers = {"content-type": "application/connect+json"}
            async with client.stream(
                "POST", f"{PATH}/Watch", content=enclosed(b"{}"), headers=headers
            ) as stream:
                body = b""
                async for chunk in stream.aiter_raw():
                    body += chunk
                    if len(body) > 5 and len(body) >= 5 + int.from_bytes(body[1:5]):
                        break
                ((flags, data),) = parts_of(body[: 5 + int.from_bytes(body[1:5])])
                first = json_format.Parse(data, pb.WatchResponse())
                assert (flags, first.scheduler) == (0, scheduler.address)
                assert first.frame.is_full and first.frame.workers
            await eventually(lambda: not is_watched(scheduler))
            headers = {"origin": "https://elsewhere.example"}
            refused = await client.post(f"{PATH}/Explain", json={}, headers=headers)
            assert (refused.status_code, refused.json()["code"]) == (403, "permission_denied")
        await assert_idle(scheduler)
