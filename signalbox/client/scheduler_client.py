"""Client of a scheduler's introspection calls, for commands such as `top` and `explain`."""

import argparse
import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any, Self, cast

import grpc
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from protos.scheduler.v1 import explain_pb2, scheduler_pb2_grpc, state_pb2, stats_pb2
from signalbox.client.connection import PLAIN, Connection, add_connection_flags, dial
from signalbox.client.tls_probe import tls_hint
from signalbox.settings.environment import ENV_PREFIX

DEFAULT_ADDRESS = "127.0.0.1:50052"
TIMEOUT_S = 10.0


class SchedulerUnreachable(RuntimeError):
    """No scheduler answers in time; the message says so in one line."""


class NoAnswer(RuntimeError):
    """The scheduler refuses the call; the message gives the reason in one line."""


class UnknownRequest(NoAnswer):
    """The scheduler does not know the request, or has forgotten it."""


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


class SchedulerClient:
    """Calls a scheduler. Failed calls raise SchedulerUnreachable or NoAnswer."""

    def __init__(self, address: str, connection: Connection = PLAIN) -> None:
        self.address = address
        self._channel = dial(address, connection)
        self._uses_tls = connection.tls.ca is not None
        make_stub: Any = scheduler_pb2_grpc.SchedulerServiceStub  # generated without types
        self._stub = make_stub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._channel.close()

    async def stats(self, *, max_live_requests: int = 0) -> stats_pb2.GetStatsResponse:
        """Returns the counts, and the oldest live requests up to `max_live_requests`."""
        request = stats_pb2.GetStatsRequest(max_live_requests=max_live_requests)
        call = self._stub.GetStats(request, timeout=TIMEOUT_S)
        return cast(stats_pb2.GetStatsResponse, await self._ask(call))

    async def explain(self, request_id: str) -> explain_pb2.ExplainResponse:
        request = explain_pb2.ExplainRequest(request_id=request_id)
        call = self._stub.Explain(request, timeout=TIMEOUT_S)
        return cast(explain_pb2.ExplainResponse, await self._ask(call))

    async def explain_all(self, answer_id: str) -> list[explain_pb2.ExplainResponse]:
        """Explains the requests behind the id of an answer; there are several for several
        prompts.

        Raises UnknownRequest if there is none.
        """
        try:
            return [await self.explain(answer_id)]
        except UnknownRequest:
            parts = await self._parts(answer_id)
            if not parts:
                raise
            return parts

    async def _parts(self, answer_id: str) -> list[explain_pb2.ExplainResponse]:
        """Returns the requests of each prompt; the HTTP API appends a number to the answer's id."""
        parts: list[explain_pb2.ExplainResponse] = []
        with contextlib.suppress(UnknownRequest):
            while True:
                parts.append(await self.explain(f"{answer_id}-{len(parts)}"))
        return parts

    async def state(self, *, include_token_ids: bool) -> AsyncIterator[state_pb2.DumpStateResponse]:
        request = state_pb2.DumpStateRequest(include_token_ids=include_token_ids)
        try:
            async for part in self._stub.DumpState(request, timeout=TIMEOUT_S):
                yield part
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    async def _ask(self, call: Any) -> Any:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise self._failure(error) from error

    def _failure(self, error: grpc.aio.AioRpcError) -> RuntimeError:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            hint = tls_hint(self.address, uses_tls=self._uses_tls)
            return SchedulerUnreachable(f"no scheduler answers at {self.address}{hint}")
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return NoAnswer(f"{self.address} is no scheduler of this version")
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return UnknownRequest(error.details() or "unknown")
        return NoAnswer(error.details() or error.code().name)


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
