"""The open spans of a request and of a step, which groups and plans carry if they are sampled."""

from collections.abc import Mapping
from typing import ClassVar

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from signalbox_rpc.telemetry import tracing


class RequestTrace:
    """The open span of a sampled request."""

    __slots__ = ("_offset_ns", "span", "token_times")
    num_open: ClassVar[int] = 0
    """Open spans of this process; while it is 0, no code needs to look for them."""

    def __init__(self, span: Span, *, offset_ns: int) -> None:
        self.span = span
        self.token_times: list[float] = []
        """Times at which tokens were accepted; the tokens of one step share one object."""
        self._offset_ns = offset_ns

    @property
    def context(self) -> Context:
        """Context for spans below this one."""
        return trace.set_span_in_context(self.span, Context())

    def wall_ns(self, seconds: float) -> int:
        """Returns a time of the scheduler's clock as a span has it."""
        return int(seconds * 1e9) + self._offset_ns


class StepTrace:
    """The open span of one step, below that of the first request that asks for it."""

    __slots__ = ("span", "step_id")

    def __init__(
        self,
        parent: RequestTrace,
        *,
        step_id: int,
        attributes: Mapping[str, str | int],
        start_ns: int | None = None,
    ) -> None:
        self.step_id = step_id
        self.span: Span = tracing.get_tracer().start_span(
            "ExecuteModel",
            context=parent.context,
            kind=SpanKind.CLIENT,
            start_time=start_ns,
            attributes=attributes,
        )

    @property
    def trace_context(self) -> tuple[str, str]:
        """W3C traceparent and tracestate for the worker."""
        return tracing.inject(trace.set_span_in_context(self.span, Context()))

    def link(self, request: RequestTrace, *, request_id: str, why: str) -> None:
        """Links step and request to each other."""
        here = {"signalbox.request_id": request_id, "signalbox.why": why}
        self.span.add_link(request.span.get_span_context(), here)
        there: dict[str, str | int] = {"signalbox.step_id": self.step_id, "signalbox.why": why}
        request.span.add_link(self.span.get_span_context(), there)
