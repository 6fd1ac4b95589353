"""Runs one generation, from its arrival to its last update, for both transports.

The gRPC servicers and the HTTP API use it: they decode a request into `ApiRequest`, describe the
call in `CallContext`, and encode the updates.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from opentelemetry.context import Context

from contract.errors import Code, RpcError, Unavailable
from router.insight.request_observer import Observer
from router.insight.request_span import RequestSpan, Transport
from router.keys.api_keys import ApiKey
from router.keys.key_quota import Account, KeyLimits
from router.keys.tenants import Caller
from router.output_parsers.reasoning_reader import ReasoningReader, reasoning_reader
from router.output_parsers.tool_call_reader import ToolCallReader, reader_of
from router.prompt.conversation import Conversation
from router.request_admission import Admission, EncodedPrompt
from router.requests.api_request import ApiRequest, TimeRemaining, now_ns, timeout_ns
from router.requests.live_requests import LiveRequests
from router.requests.output_buffer import OutputBuffer
from router.requests.request_output import Update
from router.schedulers.scheduler_pool import Schedulers
from router.served_model import ServedModel
from router.work_limits.payers import ANYONE, Payer
from rpc.telemetry import tracing

MAX_NAME_CHARS = 100
COMPLETION, CHAT = "text_completion", "chat"
"""The GenAI conventions' names of the two operations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """Properties of a call that its transport knows, beside the request's content."""

    operation: str
    """COMPLETION or CHAT."""
    transport: Transport
    parent: Context
    """Trace context of the caller."""
    time_remaining: TimeRemaining
    tenant: str = ""
    """Owner of the request; empty if clients name no tenants."""
    key: ApiKey | None = None
    """API key of the caller, if keys are required."""
    payer: Payer = ANYONE
    """Payer of the request's work, in the router and at the scheduler."""


class Place(NamedTuple):
    """A place among the running requests, for a call that generates nothing."""

    model: ServedModel
    account: Account | None
    """Account that is charged for tokens, if the caller's key limits them."""

    def spend(self, num_tokens: int) -> None:
        if self.account is not None:
            self.account.spend(num_tokens)


class Generator:
    """Turns checked requests into streams of updates."""

    def __init__(
        self,
        admission: Admission,
        schedulers: Schedulers,
        live: LiveRequests,
        *,
        tool_call_parser: str,
        reasoning_parser: str,
        observer: Observer | None = None,
    ) -> None:
        """Makes a generator; the parsers are one of `tool_call_formats.CHOICES` and of
        `reasoning_formats.CHOICES`."""
        self.admission = admission
        self._schedulers = schedulers
        self._tool_call_parser = tool_call_parser
        self._reasoning_parser = reasoning_parser
        self._key_limits = KeyLimits()
        self.live = live
        self._observer = observer or Observer()

    @property
    def model(self) -> ServedModel:
        """The served model. Raises Unavailable while no scheduler serves one."""
        return self._schedulers.model

    def abort(self, request_id: str, *, tenant: str = "") -> None:
        """Ends a request: its generation raises Cancelled. Does nothing if it has ended."""
        self.live.abort(request_id, tenant=tenant)

    @contextmanager
    def place(self, caller: Caller) -> Iterator[Place]:
        """Holds a place for a call that generates nothing, such as Tokenize.

        The call counts as one of the requests that its key and the router may run at a time. Raises
        Unavailable, PermissionDenied or ResourceExhausted.
        """
        model = self.model
        with (
            self._key_limits.request(caller.key, *model.names) as account,
            self.live.reserve("", tenant=caller.tenant),
        ):
            yield Place(model, account)

    @contextmanager
    def reading(self, call_context: CallContext) -> Iterator[None]:
        """Counts and traces a request that the block fails to decode."""
        try:
            yield
        except RpcError as error:
            model = self.unread(call_context.operation, error.code, error.message)
            span = RequestSpan(
                call_context.operation,
                model=model,
                transport=call_context.transport,
                parent=call_context.parent,
            )
            span.refused(error.code)
            raise

    def unread(self, operation: str, code: Code, reason: str) -> str:
        """Counts and logs a call that failed before it was a request; returns the served model,
        or ""."""
        try:
            model = self.model.name
        except Unavailable:
            model = ""
        self._observer.unread(operation, code, reason, model=model)
        return model

    async def generate(
        self, api_request: ApiRequest, call_context: CallContext
    ) -> AsyncGenerator[Update]:
        """Yields the client's updates; when it is closed, all state of the request is released."""
        arrived_ns = now_ns()
        model = self._served_model(call_context)
        span = RequestSpan(
            call_context.operation,
            model=api_request.model[:MAX_NAME_CHARS] or model.name,
            transport=call_context.transport,
            parent=call_context.parent,
        )
        with (
            span.ending(call_context.time_remaining),
            self._observer.request(
                call_context.operation,
                model=model.name,
                span=span,
                arrived_ns=arrived_ns,
                time_remaining=call_context.time_remaining,
            ) as observed,
            self._key_limits.request(call_context.key, *model.names) as account,
            self.live.reserve(api_request.request_id, tenant=call_context.tenant) as live,
        ):
            observed.begun(live.request_id, api_request)
            prompt = await self._tokenize(api_request, model, call_context, span)
            tool_calls = self._tool_call_reader(api_request, model)
            reasoning = await self._reasoning_reader(api_request, model, prompt)
            readers = [one for one in (reasoning, tool_calls) if one is not None]
            output_buffer = None
            if not api_request.delivery.is_plain or prompt.echo is not None:
                output_buffer = OutputBuffer(api_request.delivery, prompt.echo)
            request = self.admission.submit(
                api_request,
                model,
                prompt,
                request_id=live.request_id,
                tenant=call_context.tenant,
                payer=call_context.payer,
                arrived_ns=arrived_ns,
                time_remaining=call_context.time_remaining,
                trace_context=tracing.inject(span.context),
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
                    if span.is_recording:
                        span.add_update(update)
                    if update.end is not None:
                        observed.ended(request, update.end)
                    if account is not None:
                        account.spend(sum(len(delta.token_ids) for delta in update.deltas))
                    due = update if output_buffer is None else output_buffer.push(update)
                    if due is not None:
                        yield due
            finally:
                request.release()

    def _served_model(self, call_context: CallContext) -> ServedModel:
        with self.reading(call_context):
            return self.model

    async def _tokenize(
        self,
        api_request: ApiRequest,
        model: ServedModel,
        call_context: CallContext,
        span: RequestSpan,
    ) -> EncodedPrompt:
        timeout_ns(call_context.time_remaining)  # a request past its deadline costs nothing
        self.admission.check(api_request, model)
        with span.tokenize() as tokenized:
            prompt = await self.admission.tokenize(api_request, model, payer=call_context.payer)
            tokenized += prompt.token_ids
        return prompt

    async def _reasoning_reader(
        self, api_request: ApiRequest, model: ServedModel, prompt: EncodedPrompt
    ) -> ReasoningReader | None:
        """Returns the request's reasoning reader; a structured output leaves no room for
        reasoning."""
        if (
            not isinstance(api_request.prompt, Conversation)
            or "structured_output" in api_request.sampling
        ):
            return None
        return await reasoning_reader(
            api_request.prompt, model, prompt.token_ids, setting=self._reasoning_parser
        )

    def _tool_call_reader(
        self, api_request: ApiRequest, model: ServedModel
    ) -> ToolCallReader | None:
        if not isinstance(api_request.prompt, Conversation):
            return None
        return reader_of(api_request.prompt, model, setting=self._tool_call_parser)
