"""`signalbox health`: queries a service's standard health endpoint, for container health checks.

Its exit status is the answer: 0 if the service is serving.
"""

import argparse
import asyncio
import os
import time
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from signalbox.client.connection import Connection, add_connection_flags, connection, dial
from signalbox.settings.environment import ENV_PREFIX
from signalbox_protos.worker.v1 import worker_pb2, worker_pb2_grpc

DEFAULT_ADDRESS = "127.0.0.1:50051"
CALL_TIMEOUT_S = 3.0
POLL_S = 0.1


class NotServing(RuntimeError):
    """The service is not serving, or does not answer; the message says which in one line."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        "--router",
        "--scheduler",
        metavar="HOST:PORT",
        default=os.environ.get(ENV_PREFIX + "ADDRESS", DEFAULT_ADDRESS),
        help=f"address of a router, scheduler or worker (default {DEFAULT_ADDRESS}; "
        f"env {ENV_PREFIX}ADDRESS)",
    )
    parser.add_argument(
        "--service",
        metavar="NAME",
        default="",
        help="full name of one gRPC service (default: all that the address has)",
    )
    parser.add_argument(
        "--wait",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long to wait until it serves (default: answer at once)",
    )
    add_connection_flags(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Prints that the service is serving, or raises NotServing."""
    address, service, wait_s = options["address"], options["service"], options["wait"]
    if not wait_s >= 0:  # NaN is not, either
        raise ValueError(f"--wait is {wait_s}; it must be at least 0")
    worker = asyncio.run(_wait(address, service, connection(options), wait_s=wait_s))
    print(f"{address} is serving{worker}")


async def _wait(address: str, service: str, how: Connection, *, wait_s: float) -> str:
    """Waits until the service serves; returns a worker's details, or ""."""
    ends_at = time.monotonic() + wait_s
    async with dial(address, how) as channel:
        while problem := await _problem(channel, service):
            if time.monotonic() + POLL_S >= ends_at:
                raise NotServing(f"{address} {problem}")
            await asyncio.sleep(POLL_S)
        return await _of_worker(channel)


async def _of_worker(channel: grpc.aio.Channel) -> str:
    """Returns a worker's model and ranks; "" if no worker answers the question."""
    make_stub: Any = worker_pb2_grpc.WorkerServiceStub  # generated without types
    try:
        info = await make_stub(channel).GetWorkerInfo(
            worker_pb2.GetWorkerInfoRequest(), timeout=CALL_TIMEOUT_S
        )
    except grpc.aio.AioRpcError:
        return ""
    size, num_stages = info.capacity.tensor_parallel_size, info.capacity.pipeline_parallel_size
    parts = [f"{size} tensor-parallel ranks"] * (size > 1)
    parts += [f"{num_stages} stages"] * (num_stages > 1)
    return f" {info.model.name}" + (f" on {' x '.join(parts)}" if parts else "")


async def _problem(channel: grpc.aio.Channel, service: str) -> str | None:
    """Queries once; returns the problem, or None."""
    request = health_pb2.HealthCheckRequest(service=service)
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(request, timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return "does not answer"
        return f"answers {error.code().name}: {error.details()}"
    if answer.status == health_pb2.HealthCheckResponse.SERVING:
        return None
    return f"is {health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)}"
