"""One attack as data: what is sent, on which stack, and what must be answered."""

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import httpx2

from signalbox_router.apis.inference.servicer import SERVICE_NAME

HTTP_S = 120.0
"""Seconds until an attack's HTTP client gives up; a hang is a failure, whatever the code."""
VOCAB_SIZE = 256_000
WINDOW = 400_000
"""Tokens; with this vocabulary's longest token a text of 4 MiB may be meant for it."""
NUM_BLOCKS = 65_536
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one request of an attack ended."""

    code: str
    """Name of the gRPC status ("INVALID_ARGUMENT"), the HTTP status ("400"), or "CLOSED"."""
    message: str = ""
    """The status message, or the HTTP body."""
    num_bytes: int = 0
    """Bytes of all that came back: messages, or headers and body."""


@dataclass(frozen=True, slots=True)
class Target:
    """The router as a client of either transport sees it."""

    host: str
    grpc_port: int
    http_port: int
    scheduler_port: int
    router_pid: int
    channel: grpc.aio.Channel
    http_client: httpx2.AsyncClient

    async def grpc(
        self,
        method: str,
        data: bytes,
        *,
        metadata: Sequence[tuple[str, str]] = (),
        max_messages: int | None = None,
    ) -> Answer:
        """Sends one message as bytes, and reads to the end of the answer, or so many messages.

        `method` is one of the inference service, or a whole path such as "/grpc.health.v1...".
        """
        path = method if method.startswith("/") else f"/{SERVICE_NAME}/{method}"
        method_of: Any = self.channel.unary_stream(path)  # grpcio's types want a serialiser
        call = method_of(data, metadata=tuple(metadata))
        num_bytes = num_messages = 0
        try:
            async for message in call:
                num_bytes += len(message)
                num_messages += 1
                if num_messages == max_messages:
                    break
        except grpc.aio.AioRpcError as error:
            details = error.details() or ""
            return Answer(error.code().name, details, num_bytes + len(details))
        finally:
            call.cancel()
        return Answer("OK", num_bytes=num_bytes)

    async def post(
        self, path: str, body: bytes | object, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Posts bytes, or an object as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        try:
            answer = await self.http_client.post(path, content=content, headers=given)
        except httpx2.TransportError as error:
            return Answer("CLOSED", str(error))
        head = sum(len(name) + len(value) for name, value in answer.headers.raw)
        return Answer(str(answer.status_code), answer.text, head + len(answer.content))


@contextlib.asynccontextmanager
async def target_at(
    *, host: str, grpc_port: int, http_port: int, scheduler_port: int, router_pid: int
) -> AsyncIterator[Target]:
    """Yields clients with connections of their own."""
    url = f"http://{host}:{http_port}"
    async with (
        grpc.aio.insecure_channel(f"{host}:{grpc_port}", options=_UNLIMITED) as channel,
        httpx2.AsyncClient(base_url=url, timeout=HTTP_S) as http_client,
    ):
        yield Target(host, grpc_port, http_port, scheduler_port, router_pid, channel, http_client)


@dataclass(frozen=True, slots=True)
class Options:
    """The stack that a case is for; cases with equal options share one."""

    router: tuple[str, ...] = ()
    """Flags, such as "--api-keys=...". Of a file: one that is in the repository."""
    scheduler: tuple[str, ...] = ()
    worker: tuple[str, ...] = (
        f"--max-model-len={WINDOW}",
        f"--simulated-gpu-blocks={NUM_BLOCKS}",
        "--max-num-batched-tokens=32768",
    )
    num_workers: int = 1
    constants: tuple[tuple[str, object], ...] = ()
    """Constants of any service that have other values, each a dotted path and JSON; `launch`."""


Attack = Callable[[Target], Awaitable[Answer | Sequence[Answer]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An attack, and what is expected of it."""

    name: str
    """A sentence without spaces, such as "unknown-key-of-a-megabyte"."""
    attack: Attack
    codes: frozenset[str]
    """The codes that come back, each of them at least once and no other."""
    says: str = ""
    """Stands in the message of each answer that is a refusal; name the field here."""
    max_answer_bytes: int = 64 << 10
    """Of each answer: a refusal does not repeat what was sent."""
    options: Options = field(default_factory=Options)
    unbounded: Mapping[str, object] = field(default_factory=dict)
    """Constants that remove the bound, by dotted path: with them the case must fail (`make
    test-alone`). Large enough to fail by, small enough to leave the machine alive."""
    is_long: bool = False
    """True if it takes over ten seconds on an idle machine; then `make test-alone` runs it."""
    waits_for: str = ""
    """What is still missing for it to pass; the test then must fail. Remove it with the mending."""
