"""The router as a process."""

import asyncio
import signal
import subprocess
import sys

import grpc
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_router.config import RouterConfig
from signalbox_router.main import Router, run
from signalbox_rpc.transport.listening_ports import PortInUse
from tests.router.fakes import FakeScheduler, finished, ids_of, step
from tests.waiting import EVENT_S

RUN = """
import asyncio, logging, sys
from signalbox_router.config import RouterConfig
from signalbox_router.main import run
logging.basicConfig(level="INFO", stream=sys.stdout, format="%(message)s")
asyncio.run(run(RouterConfig(grpc_port=0, http=False, scheduler=sys.argv[1])))
"""


async def start_router(scheduler_address: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", RUN, scheduler_address, stdout=subprocess.PIPE
    )


async def read_until(process: asyncio.subprocess.Process, text: str) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(EVENT_S):
        while text not in (line := (await process.stdout.readline()).decode()):
            assert line, "the router has ended"
    return line


async def test_a_router_that_waits_stops_when_told_to() -> None:
    process = await start_router("127.0.0.1:1")
    await read_until(process, "waiting for the scheduler at 127.0.0.1:1")
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), EVENT_S) == 0


async def test_a_drain_lets_requests_finish() -> None:
    scheduler = FakeScheduler()
    process = await start_router(await scheduler.start())
    listens = await read_until(process, "gRPC at")
    await read_until(process, "serving tiny")
    async with grpc.aio.insecure_channel(listens.split()[-1]) as channel:
        client = inference_pb2_grpc.InferenceServiceStub(channel)
        call = aiter(client.Generate(pb.GenerateRequest(text="Hi")))
        first = asyncio.ensure_future(anext(call))
        await scheduler.wait_until(lambda: bool(scheduler.added))
        process.send_signal(signal.SIGTERM)
        await read_until(process, "draining")
        handle = scheduler.added[0].handle
        scheduler.send(step((handle, 0, ids_of("done")), **finished(handle)))
        assert (await first).outputs[0].text == "done"
    assert await asyncio.wait_for(process.wait(), EVENT_S) == 0
    await scheduler.stop()


async def test_a_port_in_use_is_an_error_of_one_line() -> None:
    first = Router(RouterConfig(grpc_port=0, http=False))
    port = await first.start()
    with pytest.raises(PortInUse, match=str(port)):
        await run(RouterConfig(grpc_port=port, http=False))
    await first.server.drain(grace_s=0)
    await first.stop()


def test_schedulers_are_given_once_each() -> None:
    with pytest.raises(ValueError, match="give at least one, each once"):
        RouterConfig(scheduler="a:1, a:1")


def test_a_router_needs_no_model_code() -> None:
    code = (
        "import signalbox_router.main, sys; "
        "others = {'torch', 'transformers', 'signalbox_worker', 'signalbox_scheduler'}; "
        "sys.exit(bool(others & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
