"""One generation, from the door to its last update, whichever transport carries it.

The gRPC servicers and the HTTP API are both made of this: they decode a request into `Asked`, say
in `Origin` what they know of the call, and encode what comes out.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import grpc
from opentelemetry.context import Context

from router.admission import Admission, Asked, EncodedPrompt, TimeRemaining, now_ns, timeout_ns
from router.conversation import Conversation
from router.delivery import Echo, Outbox
from router.key_limits import KeyLimits
from router.keys import ApiKey
from router.model import ServedModel
from router.observer import Observer
from router.outputs import Update
from router.reasoning import ReasoningReader, reasoning_reader
from router.request import GenerationRequest
from router.schedulers import Schedulers
from router.tool_reader import ToolCallReader, reader_of
from router.tracing import RequestSpan, Transport
from rpc import telemetry
from rpc.errors import Cancelled, RpcError, Unavailable

MAX_NAME_CHARS = 100
COMPLETION, CHAT = "text_completion", "chat"
"""GenAI's names of what is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a request comes from: what its transport knows beside its content."""

    operation: str
    """COMPLETION or CHAT."""
    transport: Transport
    parent: Context
    """The caller's trace."""
    time_remaining: TimeRemaining
    tenant: str = ""
    """Who pays; those who name nobody are one tenant."""
    key: ApiKey | None = None
    """What the caller has shown, where keys are asked for."""


class Served(NamedTuple):
    """What one message to a client is made of."""

    request: GenerationRequest
    update: Update
    echo: Echo | None = None
    """The prompt that the first delta of each sequence begins with, if it does."""


@dataclass(slots=True)
class _Live:
    """A request from the door to its end."""

    request: GenerationRequest | None = None
    is_aborted: bool = False

    def begin(self, request: GenerationRequest) -> None:
        self.request = request
        if self.is_aborted:
            self.abort()

    def abort(self) -> None:
        self.is_aborted = True
        if self.request is not None:
            self.request.fail(Cancelled("aborted by its request id"))
            self.request.close()


class Generator:
    """Text in, a stream of updates out."""

    def __init__(
        self,
        admission: Admission,
        schedulers: Schedulers,
        *,
        tool_call_parser: str,
        reasoning_parser: str,
        observer: Observer | None = None,
    ) -> None:
        """The parsers are one of `tool_formats.CHOICES` and one of `reasoning.CHOICES`."""
        self.admission = admission
        self._schedulers = schedulers
        self._tool_call_parser = tool_call_parser
        self._reasoning_parser = reasoning_parser
        self._key_limits = KeyLimits()
        self._live: dict[tuple[str, str], _Live] = {}  # by tenant and request id
        self._observer = observer or Observer()

    @property
    def model(self) -> ServedModel:
        """Raises Unavailable while nobody serves."""
        return self._schedulers.model

    def abort(self, request_id: str, *, tenant: str = "") -> None:
        """Ends a request, which raises Cancelled where it is generated; no-op if it has ended."""
        if live := self._live.get((tenant, request_id)):
            live.abort()

    @contextmanager
    def reading(self, origin: Origin) -> Iterator[None]:
        """Counts, and traces, a request of which the block cannot make something to generate."""
        try:
            yield
        except RpcError as error:
            model = self.unread(origin.operation, error.code, error.message)
            span = RequestSpan(
                origin.operation, model=model, transport=origin.transport, parent=origin.parent
            )
            span.refused(error.code)
            raise

    def unread(self, operation: str, code: grpc.StatusCode, reason: str) -> str:
        """Counts and logs a call that never became a request; returns the served model, or ""."""
        try:
            model = self.model.name
        except Unavailable:
            model = ""
        self._observer.unread(operation, code, reason, model=model)
        return model

    async def generate(self, asked: Asked, origin: Origin) -> AsyncGenerator[Served]:
        """Yields what the client gets next; when this is closed, nothing of the request is left."""
        arrived_ns = now_ns()
        model = self._served(origin)
        span = RequestSpan(
            origin.operation,
            model=asked.model[:MAX_NAME_CHARS] or model.name,
            transport=origin.transport,
            parent=origin.parent,
        )
        with (
            span.ending(origin.time_remaining),
            self._observer.request(
                origin.operation,
                model=model.name,
                span=span,
                arrived_ns=arrived_ns,
                time_remaining=origin.time_remaining,
            ) as observed,
            self._key_limits.request(origin.key, *model.names) as account,
            self.admission.reserve(asked.request_id, tenant=origin.tenant) as request_id,
            self._living(request_id, tenant=origin.tenant) as live,
        ):
            observed.begun(request_id, asked)
            prompt = await self._tokenize(asked, model, origin, span)
            tool_calls = self._tool_call_reader(asked, model)
            reasoning = await self._reasoning_reader(asked, model, prompt)
            readers = [one for one in (reasoning, tool_calls) if one is not None]
            outbox = Outbox(asked.delivery, prompt.echo)
            request = self.admission.submit(
                asked,
                model,
                prompt,
                request_id=request_id,
                tenant=origin.tenant,
                arrived_ns=arrived_ns,
                time_remaining=origin.time_remaining,
                trace_context=telemetry.inject(span.context),
                kept_token_ids=frozenset().union(*(one.kept_token_ids for one in readers)),
            )
            live.begin(request)
            span.set_request(request)
            observed.admitted(request)
            if account is not None:
                account.spend(len(prompt.token_ids))
            try:
                is_last = False
                while not is_last:
                    update = await request.next_update()
                    is_last = update.end is not None
                    for reader in readers:
                        reader.read(update)
                    span.add_update(update)
                    if update.end is not None:
                        observed.ended(request, update.end)
                    if account is not None:
                        account.spend(sum(len(delta.token_ids) for delta in update.deltas))
                    due = outbox.push(update)
                    if due is not None:
                        yield Served(request, due, prompt.echo)
            finally:
                request.close()

    @contextmanager
    def _living(self, request_id: str, *, tenant: str) -> Iterator[_Live]:
        live = self._live[tenant, request_id] = _Live()
        try:
            yield live
        finally:
            del self._live[tenant, request_id]

    def _served(self, origin: Origin) -> ServedModel:
        with self.reading(origin):
            return self.model

    async def _tokenize(
        self, asked: Asked, model: ServedModel, origin: Origin, span: RequestSpan
    ) -> EncodedPrompt:
        timeout_ns(origin.time_remaining)  # a request that is late already costs nothing
        self.admission.check(asked, model)
        with span.tokenize() as tokenized:
            prompt = await self.admission.tokenize(asked, model)
            tokenized += prompt.token_ids
        return prompt

    async def _reasoning_reader(
        self, asked: Asked, model: ServedModel, prompt: EncodedPrompt
    ) -> ReasoningReader | None:
        """A text that must conform to a structure has no room for reasoning before it."""
        if not isinstance(asked.prompt, Conversation) or "structured_output" in asked.sampling:
            return None
        return await reasoning_reader(
            asked.prompt, model, prompt.token_ids, setting=self._reasoning_parser
        )

    def _tool_call_reader(self, asked: Asked, model: ServedModel) -> ToolCallReader | None:
        if not isinstance(asked.prompt, Conversation):
            return None
        return reader_of(asked.prompt, model, setting=self._tool_call_parser)
