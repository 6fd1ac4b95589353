"""The span of one request, with the attributes of OpenTelemetry's GenAI conventions.

Spans are started and ended by hand: a handler that streams must not keep a span current while it is
suspended. Prompts and outputs are never recorded.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from signalbox_contract.errors import Code, RpcError
from signalbox_router.requests.active_request import ActiveRequest, Update
from signalbox_rpc.telemetry import trace_ids, tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Attributes of a transport in the semantic conventions of its protocol."""

    attributes: Mapping[str, str | bool]
    status_attribute: Callable[[Code], tuple[str, str | int]]
    """Returns the attribute for a final status code."""


def rpc_transport(method: str, *, system: str = "grpc") -> Transport:
    """Returns the transport of a streamed call of the method "package.Service/Method".

    Args:
        system: the protocol, "grpc" or "connectrpc".
    """
    return Transport(
        attributes={
            "rpc.system.name": system,
            "rpc.method": method,
            "gen_ai.request.stream": True,
        },
        status_attribute=lambda code: ("rpc.status_code", code.name),
    )


def http_transport(
    *, method: str, route: str, is_streamed: bool, status_of: Callable[[Code], int]
) -> Transport:
    """Returns the transport of an HTTP request; `status_of` maps status codes to HTTP's."""
    return Transport(
        attributes={
            "http.request.method": method,
            "http.route": route,
            "gen_ai.request.stream": is_streamed,
        },
        status_attribute=lambda code: ("http.response.status_code", status_of(code)),
    )


class RequestSpan:
    """The SERVER span of one generation."""

    __slots__ = (
        "_finish_reasons", "_span", "_task", "_tracer", "_transport", "context", "is_recording",
    )  # fmt: skip

    def __init__(
        self, operation: str, *, model: str, transport: Transport, parent: Context
    ) -> None:
        self._transport = transport
        self._tracer = tracing.get_tracer()
        self._span: Span = self._tracer.start_span(
            f"{operation} {model}".rstrip(), context=parent, kind=SpanKind.SERVER
        )
        self.is_recording = self._span.is_recording()
        self._finish_reasons: dict[int, str] = {}
        self._task = ""
        self.context = trace.set_span_in_context(self._span, parent)
        if self.is_recording:
            self._span.set_attributes(
                {
                    "gen_ai.operation.name": operation,
                    "gen_ai.provider.name": "signalbox",
                    "gen_ai.request.model": model,
                    "gen_ai.response.model": model,
                    **transport.attributes,
                }
            )

    @property
    def trace_id(self) -> str:
        """Id of the trace if it is sampled, otherwise ""."""
        return trace_ids.of_context(self.context)

    @contextmanager
    def tokenize(self) -> Iterator[list[int]]:
        """Traces tokenising as a child span; the caller puts the tokens into the yielded list."""
        token_ids: list[int] = []
        with _ended(self._tracer.start_span("tokenize", context=self.context)) as span:
            yield token_ids
            span.set_attribute("gen_ai.usage.input_tokens", len(token_ids))

    @contextmanager
    def wait_for_model(self, model: str) -> Iterator[tuple[str, str]]:
        """Traces the wait for a model that is loaded first, as a child span; yields the trace
        context of that."""
        span = self._tracer.start_span(
            "wait for model", context=self.context, attributes={"gen_ai.request.model": model}
        )
        with _ended(span):
            yield tracing.inject(trace.set_span_in_context(span, self.context))

    def set_transport(self, transport: Transport) -> None:
        """Takes over what became known of the call after its span was opened."""
        self._transport = transport
        if self.is_recording:
            self._span.set_attributes(dict(transport.attributes))

    def set_request(self, request: ActiveRequest, task: str) -> None:
        if not self.is_recording:
            return
        self._span.set_attribute("gen_ai.response.id", request.request_id)
        self._task = task
        if request.pooling is not None:
            self._span.set_attribute("signalbox.pooling.task", task)
            return
        params, sampling = request.params, request.params.sampling
        self._span.set_attributes(
            {
                "gen_ai.request.max_tokens": params.max_tokens,
                "gen_ai.request.temperature": sampling.temperature,
                "gen_ai.request.top_p": sampling.top_p,
                "gen_ai.request.top_k": sampling.top_k,
                "gen_ai.request.frequency_penalty": sampling.frequency_penalty,
                "gen_ai.request.presence_penalty": sampling.presence_penalty,
                # An attribute is a signed 64-bit integer.
                "gen_ai.request.seed": str(sampling.seed),
                "gen_ai.request.stop_sequences": params.stop,
                "gen_ai.request.choice.count": params.n,
            }
        )

    def add_update(self, update: Update) -> None:
        """Records how sequences end, if the span is recording."""
        for delta in update.deltas:
            if delta.finish is not None:
                self._finish_reasons[delta.index] = delta.finish.reason.name.lower()
        if update.end is not None:
            self._set_end(update)

    def _set_end(self, update: Update) -> None:
        assert update.end is not None
        usage = update.end.usage
        reasons = [self._finish_reasons[index] for index in sorted(self._finish_reasons)]
        self._span.set_attributes(
            {
                "gen_ai.response.finish_reasons": reasons,
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            }
        )
        if (use := update.end.speculation).num_runs:
            counts = {f"signalbox.speculation.{name}": n for name, n in use._asdict().items()}
            self._span.set_attributes(counts)
        if self._task == "embed" and update.request.vector is not None:
            size = update.request.vector.size
            self._span.set_attribute("gen_ai.embeddings.dimension.count", size)
        self._span.set_attribute(*self._transport.status_attribute(Code.OK))
        first_ns = update.end.time_to_first_token_ns
        if first_ns is not None:
            self._span.set_attribute("gen_ai.response.time_to_first_chunk", first_ns / 1e9)

    @contextmanager
    def ending(self, time_remaining: Callable[[], float | None]) -> Iterator[None]:
        """Ends the span after the block, with an ERROR status if the block raises."""
        try:
            yield
        except BaseException as error:
            if self.is_recording:
                self._fail(code_of(error, is_late=time_remaining() == 0))
            raise
        finally:
            self._span.end()

    def refused(self, code: Code) -> None:
        """Ends the span of a request that was not decoded or found no served model."""
        if self.is_recording:
            self._fail(code)
        self._span.end()

    def _fail(self, code: Code) -> None:
        self._span.set_status(Status(StatusCode.ERROR, code.name))
        self._span.set_attribute("error.type", code.name)
        self._span.set_attribute(*self._transport.status_attribute(code))


@contextmanager
def route_span(request: ActiveRequest, *, scheduler: str, since_ns: int | None) -> Iterator[None]:
    """Traces sending a request to a scheduler.

    Args:
        since_ns: time at which the request lost its previous scheduler, if it did; the span covers
            its wait for this one.
    """
    traceparent, tracestate = request.trace_context
    if not traceparent:
        yield
        return
    span = tracing.get_tracer().start_span(
        "route",
        context=tracing.extract(traceparent, tracestate),
        start_time=since_ns,
        attributes={
            "server.address": scheduler,
            "signalbox.route.policy": "least_requests",
            "signalbox.route.attempt": request.attempt + 1,
            "signalbox.replayed_tokens": request.num_generated_tokens,
        },
    )
    with _ended(span):
        yield


@contextmanager
def _ended(span: Span) -> Iterator[Span]:
    """Ends a span after the block, with an ERROR status if the block raises."""
    try:
        yield span
    except BaseException as error:
        span.set_status(Status(StatusCode.ERROR, type(error).__name__))
        raise
    finally:
        span.end()


def code_of(error: BaseException, *, is_late: bool) -> Code:
    """Returns the status code of a request that raised `error`."""
    if isinstance(error, RpcError):
        return error.code
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        # gRPC cancels the handler of a call whose deadline has passed.
        return Code.DEADLINE_EXCEEDED if is_late else Code.CANCELLED
    return Code.INTERNAL


def reason_of(error: BaseException) -> str:
    """Returns the client's error message; for an internal error only the name of its class."""
    if isinstance(error, RpcError):
        return error.message
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "the call was cancelled or its deadline passed"
    return type(error).__name__
