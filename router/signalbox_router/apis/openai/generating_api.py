"""Base class of handlers whose answers are generated: from the body to the written answer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from signalbox_router.apis.openai.bodies.body_reader import BodyReader
from signalbox_router.apis.openai.callers import Callers, completed
from signalbox_router.apis.openai.multi_prompt import merged
from signalbox_router.apis.openai.requests.types import StreamableBody
from signalbox_router.apis.openai.streaming import GeneratedResponse, Headers, ResponseWriter
from signalbox_router.generation.call_context import CHAT, CallContext
from signalbox_router.generation.generator import Generator
from signalbox_router.limits.tenants import Tenants
from signalbox_router.requests.api_request import ApiRequest
from signalbox_rpc.http.disconnection import until_disconnected

B = TypeVar("B", bound=StreamableBody)


class Generation(NamedTuple):
    """The requests that a body makes, and the writer of their answer."""

    requests: Sequence[ApiRequest]
    """A request for each prompt."""
    writer: ResponseWriter
    headers: Headers
    """Headers of the answer."""


class GeneratingApi:
    """Base class of the handlers of an API whose models generate."""

    def __init__(self, generator: Generator, *, tenants: Tenants, bodies: BodyReader) -> None:
        self._generator = generator
        self._callers = Callers(tenants)
        self._bodies = bodies

    async def _generate(
        self,
        request: Request,
        kind: type[B],
        convert: Callable[[Request, B], Generation],
        *,
        operation: str = CHAT,
    ) -> Response:
        """Returns the answer to a request whose body is of a kind.

        `convert` may run in a thread, as `BodyReader.read` says, and raises its exceptions.
        """
        call_context = self._callers.call_context(request, operation=operation)
        body, generation = await self._generator.read(
            call_context,
            lambda: self._bodies.read(request, kind, into=lambda body: convert(request, body)),
            until_left=partial(until_disconnected, request.receive),
        )
        return self._answer(request, body, generation, call_context)

    def _answer(
        self,
        request: Request,
        body: StreamableBody,
        generation: Generation,
        call_context: CallContext,
    ) -> Response:
        """Returns the answer to a request that was read."""
        call_context = completed(call_context, request, streams=body.stream)
        updates = [self._generator.generate(one, call_context) for one in generation.requests]
        return GeneratedResponse(
            merged(updates), generation.writer, body=body, headers=generation.headers
        )
