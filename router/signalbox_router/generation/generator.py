"""Runs one generation, from its arrival to its last update, for both transports.

The gRPC servicers and the HTTP API use it: they decode a request into `ApiRequest`, describe the
call in `CallContext`, and encode the updates.
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from signalbox_contract.errors import Code, NotFound, RpcError
from signalbox_router.generation import prefix_watcher
from signalbox_router.generation.call_context import Begun, CallContext
from signalbox_router.generation.request_admission import Admission, Arrival, EncodedPrompt
from signalbox_router.insight.request_observer import Observed, Observer
from signalbox_router.insight.request_span import RequestSpan, code_of, reason_of
from signalbox_router.limits.api_keys import ApiKey
from signalbox_router.limits.key_quota import Account, KeyLimits
from signalbox_router.limits.tenants import Caller
from signalbox_router.parsers.reasoning_reader import ReasoningReader, reasoning_reader
from signalbox_router.parsers.tool_call_reader import ToolCallReader, reader_of
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.receipts.receipts import Receipts
from signalbox_router.requests.active_request import ActiveRequest, Update
from signalbox_router.requests.api_request import ApiRequest, now_ns, timeout_ns
from signalbox_router.requests.live_requests import RequestSlots
from signalbox_router.requests.output_buffer import OutputBuffer
from signalbox_router.requests.request_output import End
from signalbox_router.schedulers.first_use import FirstUse
from signalbox_router.schedulers.launcher.launched_models import NotLoaded
from signalbox_router.schedulers.launcher.model_starts import (
    NO_TRACE,
    ModelStarts,
    TraceContext,
)
from signalbox_router.schedulers.served_models import ANY, MAX_MODEL_NAME_CHARS, ServedModels
from signalbox_rpc.telemetry import tracing

T = TypeVar("T")
UntilLeft = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]
"""Ends a wait when the client leaves, by an exception."""


class CallReservation(NamedTuple):
    """A place among the running requests, for a call that generates nothing."""

    model: ServedModel
    account: Account | None
    """Account that is charged for tokens, if the caller's key limits them."""

    def spend(self, num_tokens: int) -> None:
        if self.account is not None:
            self.account.spend(num_tokens)


OutputReader = ReasoningReader | ToolCallReader
MakeReceipt = Callable[[ActiveRequest, End], Mapping[str, Any]]


@dataclass(slots=True)
class _UpdatePath:
    """Passes each update of a request through its readers, statistics and buffer."""

    readers: list[OutputReader]
    span: RequestSpan
    observed: Observed
    account: Account | None
    """Account that is charged for tokens, if the caller's key limits them."""
    buffer: OutputBuffer | None
    """None if the client gets each update as it is."""
    make_receipt: MakeReceipt | None
    """None if the client wants no receipt."""
    admission: Admission

    def push(self, update: Update) -> Update | None:
        """Returns the update to send now, or None."""
        for reader in self.readers:
            reader.read(update)
        if self.span.is_recording:
            self.span.add_update(update)
        if (end := update.end) is not None:
            if self.readers:
                num_tokens = sum(reader.num_reasoning_tokens for reader in self.readers)
                end = end._replace(num_reasoning_tokens=num_tokens)
            if self.make_receipt is not None:
                end = end._replace(receipt=self.make_receipt(update.request, end))
            update = update._replace(end=end)
            self.observed.ended(update.request, end)
            if update.request.session:
                called_tool = any(reader.num_calls for reader in self.readers)
                self.admission.pause(update.request, called_tool=called_tool)
            if (watch := update.request.watch) is not None:
                watch.ended(num_cached_tokens=end.usage.cached_tokens)
        if self.account is not None:
            self.account.spend(sum(len(delta.token_ids) for delta in update.deltas))
        return update if self.buffer is None else self.buffer.push(update)


class Generator:
    """Turns checked requests into streams of updates."""

    def __init__(
        self,
        admission: Admission,
        models: ServedModels,
        live: RequestSlots,
        *,
        first_use: FirstUse | None = None,
        observer: Observer | None = None,
        receipts: Receipts | None = None,
        starts: ModelStarts | None = None,
    ) -> None:
        """Makes a generator.

        Args:
            first_use: loads adapters that requests name; None loads none.
            starts: requests that wait until the launcher has loaded their model.
        """
        self.admission = admission
        self.models = models
        self._first_use = first_use
        self._key_limits = KeyLimits()
        self.live = live
        self._observer = observer or Observer()
        self._receipts = receipts or Receipts()
        self._starts = starts or ModelStarts()

    def model_of(self, name: str, tasks: frozenset[str]) -> ServedModel:
        """Returns the model that a request means; see `ServedModels.of`.

        An unknown name may be that of an adapter, which is loaded at first use: for the only model
        with one of the tasks.
        """
        try:
            return self.models.of(name, tasks)
        except NotFound:
            base = None if self._first_use is None else self.models.only(tasks)
            if base is None:
                raise
            return base

    def abort(self, request_id: str, *, tenant: str = "") -> None:
        """Ends a request: its generation raises Cancelled. Does nothing if it has ended."""
        self.live.abort(request_id, tenant=tenant)

    @asynccontextmanager
    async def place(
        self,
        caller: Caller,
        name: str,
        tasks: frozenset[str] = ANY,
        *,
        until_left: UntilLeft | None = None,
    ) -> AsyncIterator[CallReservation]:
        """Holds a place for a call that generates nothing, such as Tokenize, of the model so named.

        The call counts as one of the requests that its key and the router may run at a time, and
        waits for a model that is not loaded. Raises the exceptions of `ServedModels.of`,
        PermissionDenied or ResourceExhausted.

        Args:
            until_left: ends that wait when the client leaves; by default the caller is cancelled.
        """
        while True:
            try:
                model = self.models.of(name, tasks)
                break
            except NotLoaded as absent:
                wait = self._wait(absent, caller.key)
                await (wait if until_left is None else until_left(wait))
        with (
            self._key_limits.request(caller.key, *model.names_of(name)) as account,
            self.live.reserve("", tenant=caller.tenant),
        ):
            yield CallReservation(model, account)

    @contextmanager
    def reading(self, call_context: CallContext) -> Iterator[None]:
        """Counts and traces a request that the block fails to decode."""
        try:
            yield
        except RpcError as error:
            self._refused(call_context, error.code, error.message)
            raise

    def _refused(self, call_context: CallContext, code: Code, reason: str) -> None:
        begun, call_context.begun = call_context.begun, None
        model = self.unread(call_context.operation, code, reason)
        span = _open_span(call_context, model) if begun is None else begun.span
        span.refused(code)

    async def read(
        self,
        call_context: CallContext,
        decode: Callable[[], Awaitable[T]],
        *,
        until_left: UntilLeft | None = None,
    ) -> T:
        """Returns what a request decodes to, as `reading`.

        If the model is not loaded that it names, waits for that and decodes it again.

        Args:
            until_left: ends that wait when the client leaves; by default the caller is cancelled.
        """
        with self.reading(call_context):
            while True:
                try:
                    return await decode()
                except NotLoaded as absent:
                    wait = self._wait_for_model(absent, call_context)
                    await (wait if until_left is None else until_left(wait))

    async def when_loaded(
        self, absent: NotLoaded, resolve: Callable[[], T], call_context: CallContext
    ) -> T:
        """Returns what `resolve` does once the model is loaded that it lacks."""
        while True:
            await self._wait_for_model(absent, call_context)
            try:
                return resolve()
            except NotLoaded as again:
                absent = again

    async def _wait_for_model(self, absent: NotLoaded, call_context: CallContext) -> None:
        """Returns once a model is served that a request names; the wait is a part of its span."""
        name, began_ns = absent.model.name, now_ns()
        begun = call_context.begun or Begun(_open_span(call_context, name), began_ns)
        call_context.begun = begun
        try:
            with begun.span.wait_for_model(name) as trace:
                await self._wait(absent, call_context.key, trace)
            waited_ns = begun.waited_ns + now_ns() - began_ns
            call_context.begun = begun._replace(waited_ns=waited_ns)
        except RpcError:
            raise  # `reading` counts it
        except BaseException as error:
            code = code_of(error, is_late=call_context.time_remaining() == 0)
            self._refused(call_context, code, reason_of(error))
            raise

    async def _wait(
        self, absent: NotLoaded, key: ApiKey | None, trace: TraceContext = NO_TRACE
    ) -> None:
        with self._key_limits.request(key, *absent.model.names_of("")):
            await self._starts.wait(absent.model.name, trace=trace)

    def unread(self, operation: str, code: Code, reason: str) -> str:
        """Counts and logs a call that failed before it was a request; returns its model if there
        is only one, else ""."""
        model = self.models.only_name
        self._observer.unread(operation, code, reason, model=model)
        return model

    async def generate(
        self, api_request: ApiRequest, call_context: CallContext
    ) -> AsyncGenerator[Update]:
        """Yields the client's updates; when it is closed, all state of the request is released."""
        arrived_ns = now_ns()
        with self.reading(call_context):
            name, tasks = api_request.model, frozenset({api_request.task})
            try:
                model = self.model_of(name, tasks)
            except NotLoaded as absent:
                resolve = partial(self.model_of, name, tasks)
                model = await self.when_loaded(absent, resolve, call_context)
        named = name[:MAX_MODEL_NAME_CHARS] or model.name
        span, arrived_ns, waited_ns = _begun(call_context, named, arrived_ns)
        with (
            span.ending(call_context.time_remaining),
            self._observer.request(
                call_context.operation,
                model=model.name,
                span=span,
                arrived_ns=arrived_ns,
                time_remaining=call_context.time_remaining,
            ) as observed,
            self._key_limits.request(
                call_context.key,
                *model.names_of(api_request.model),
                may_owe=api_request.may_owe,
            ) as account,
            self.live.reserve(api_request.request_id, tenant=call_context.tenant) as live,
        ):
            observed.begun(live.request_id, api_request)
            model = await self._model_with_adapter(api_request.model, model)
            prompt = await self._tokenize(api_request, model, call_context, span)
            readers = self._readers(api_request, model, prompt)
            kept_token_ids = frozenset[int]().union(*(one.kept_token_ids for one in readers))
            request = self.admission.submit(
                api_request,
                model,
                prompt,
                call_context,
                Arrival(live.request_id, arrived_ns, tracing.inject(span.context), waited_ns),
                kept_token_ids=kept_token_ids,
            )
            live.begin(request)
            span.set_request(request, api_request.task)
            observed.admitted(request)
            if account is not None:
                account.spend(len(prompt.token_ids))
            buffer = _make_buffer(api_request, prompt)
            make_receipt = partial(self._receipts.of, model, kept_token_ids=kept_token_ids)
            receipt = make_receipt if api_request.wants_receipt else None
            path = _UpdatePath(readers, span, observed, account, buffer, receipt, self.admission)
            try:
                is_last = False
                while not is_last:
                    update = await request.next_update()
                    is_last = update.end is not None
                    if (due := path.push(update)) is not None:
                        yield due
            finally:
                request.release()
                if request.watch is not None:
                    readers = self._readers(api_request, model, prompt)
                    prefix_watcher.keep(request, readers, kept_token_ids)

    async def _model_with_adapter(self, name: str, model: ServedModel) -> ServedModel:
        """Returns the model once it has the adapter that a request names. Raises NotFound if there
        is none."""
        if self._first_use is None or model.knows(name):
            return model
        await self._first_use.load(name, model)
        return self.models.of(name)

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

    def _readers(
        self, api_request: ApiRequest, model: ServedModel, prompt: EncodedPrompt
    ) -> list[OutputReader]:
        """Returns what reads the text of a conversation, in order."""
        conversation = api_request.prompt
        if not isinstance(conversation, Conversation):
            return []
        tool_calls = reader_of(prompt.tool_format, conversation, model)
        reasoning = prompt.reasoning
        readers: list[OutputReader] = [] if tool_calls is None else [tool_calls]
        if reasoning is not None:
            openings = () if tool_calls is None else tool_calls.openings
            is_last = tool_calls is None
            first = reasoning_reader(reasoning, model, openings=openings, is_last=is_last)
            readers.insert(0, first)
        return readers


def _begun(call_context: CallContext, model: str, arrived_ns: int) -> Begun:
    """Returns what a request has that waited for its model, else a new span."""
    begun, call_context.begun = call_context.begun, None
    if begun is None:
        return Begun(_open_span(call_context, model), arrived_ns)
    begun.span.set_transport(call_context.transport)
    return begun


def _open_span(call_context: CallContext, model: str) -> RequestSpan:
    return RequestSpan(
        call_context.operation,
        model=model,
        transport=call_context.transport,
        parent=call_context.parent,
    )


def _make_buffer(api_request: ApiRequest, prompt: EncodedPrompt) -> OutputBuffer | None:
    """Returns None if the client gets each update as it is."""
    if api_request.delivery.is_plain and prompt.echo is None:
        return None
    return OutputBuffer(api_request.delivery, prompt.echo)
