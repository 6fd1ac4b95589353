"""Client of a scheduler's introspection calls, for commands such as `top` and `explain`."""

import argparse
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from signalbox.client.connection import PLAIN, Connection, add_connection_flags
from signalbox.client.service_client import TIMEOUT_S, NotKnown, ServiceClient
from signalbox.settings.environment import ENV_PREFIX
from signalbox_protos.scheduler.v1 import (
    explain_pb2,
    scheduler_pb2,
    scheduler_pb2_grpc,
    state_pb2,
    stats_pb2,
)

CLEAR_S = 330.0
"""Seconds to wait for the stores of all workers to be cleared."""
DEFAULT_ADDRESS = "127.0.0.1:50052"


def add_address_flag(parser: argparse.ArgumentParser) -> None:
    """Adds --scheduler, the TLS flags, and --debug."""
    parser.add_argument(
        "--scheduler",
        "--address",
        dest="address",
        metavar="HOST:PORT",
        default=os.environ.get(ENV_PREFIX + "SCHEDULER", DEFAULT_ADDRESS),
        help=f"where the scheduler listens (default {DEFAULT_ADDRESS}; env {ENV_PREFIX}SCHEDULER);"
        " --address, as it was called first, means the same",
    )
    add_connection_flags(parser)
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


class SchedulerClient(ServiceClient):
    """Calls a scheduler."""

    def __init__(self, address: str, how: Connection = PLAIN) -> None:
        super().__init__("scheduler", scheduler_pb2_grpc.SchedulerServiceStub, address, how)

    async def stats(
        self, *, max_live_requests: int = 0, max_sessions: int = 0
    ) -> stats_pb2.GetStatsResponse:
        """Returns the counts, the oldest live requests, and the sessions that were used last."""
        request = stats_pb2.GetStatsRequest(
            max_live_requests=max_live_requests, max_sessions=max_sessions
        )
        answer = await self.answer(self.stub.GetStats(request, timeout=TIMEOUT_S))
        return cast(stats_pb2.GetStatsResponse, answer)

    async def clear_cache(self, tenant: str | None) -> dict[str, str]:
        """Clears the caches of all workers; returns the fault of each, empty if it has none."""
        request = scheduler_pb2.ClearCacheRequest(tenant=tenant)
        answer = await self.answer(self.stub.ClearCache(request, timeout=CLEAR_S))
        workers = cast(scheduler_pb2.ClearCacheResponse, answer).workers
        return {one.worker: one.fault for one in workers}

    async def drain(self, worker: str) -> int:
        """Lets a worker leave; returns how many requests are on it. Raises NotKnown."""
        request = scheduler_pb2.DrainWorkerRequest(worker=worker)
        answer = await self.answer(self.stub.DrainWorker(request, timeout=TIMEOUT_S))
        return cast(scheduler_pb2.DrainWorkerResponse, answer).num_requests

    async def explain(self, request_id: str) -> explain_pb2.ExplainResponse:
        request = explain_pb2.ExplainRequest(request_id=request_id)
        answer = await self.answer(self.stub.Explain(request, timeout=TIMEOUT_S))
        return cast(explain_pb2.ExplainResponse, answer)

    async def explain_all(self, answer_id: str) -> list[explain_pb2.ExplainResponse]:
        """Explains the requests behind the id of an answer; there are several for several
        prompts.

        Raises NotKnown if there is none.
        """
        try:
            return [await self.explain(answer_id)]
        except NotKnown:
            parts = await self._parts(answer_id)
            if not parts:
                raise
            return parts

    async def _parts(self, answer_id: str) -> list[explain_pb2.ExplainResponse]:
        """Returns the requests of each prompt; the HTTP API appends a number to the answer's id."""
        parts: list[explain_pb2.ExplainResponse] = []
        with contextlib.suppress(NotKnown):
            while True:
                parts.append(await self.explain(f"{answer_id}-{len(parts)}"))
        return parts

    def state(self, *, include_token_ids: bool) -> AsyncIterator[state_pb2.DumpStateResponse]:
        request = state_pb2.DumpStateRequest(include_token_ids=include_token_ids)
        return self.answers(self.stub.DumpState(request, timeout=TIMEOUT_S))


def plain(message: Message) -> dict[str, Any]:
    """Returns a message as JSON-like data: numbers as numbers, enums by name, only set fields."""
    result: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.message_type and field.message_type.GetOptions().map_entry:
            result[field.name] = {str(key): value[key] for key in sorted(value)}
        elif field.is_repeated:
            result[field.name] = [_plain_value(field, item) for item in value]
        else:
            result[field.name] = _plain_value(field, value)
    return result


def _plain_value(field: FieldDescriptor, value: Any) -> Any:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return plain(value)
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    if isinstance(value, bytes):
        return value.hex()
    return value
