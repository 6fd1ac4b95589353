"""The worker's spans of a step that the scheduler traces: `ExecuteModel`, and its parts below.

The parts are written when the step is done, from the times that it took anyhow.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from contract.step import Step
from contract.step_result import StepResult
from rpc.telemetry import tracing

METHOD = "signalbox.worker.v1.WorkerService/ExecuteModel"


class StepSpan:
    """The open span of a step; without a trace its methods do nothing."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    @classmethod
    def begin(cls, step: Step) -> "StepSpan":
        """Opens the span of a step, if the scheduler traces it."""
        if not step.traceparent:
            return cls(trace.INVALID_SPAN)
        span = tracing.get_tracer().start_span(
            "ExecuteModel",
            context=tracing.extract(step.traceparent, step.tracestate),
            kind=SpanKind.SERVER,
            attributes={
                "rpc.system.name": "grpc",
                "rpc.method": METHOD,
                "signalbox.step_id": step.step_id,
                **{f"signalbox.{name}": number for name, number in step.section_counts.items()},
            },
        )
        return cls(span)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Makes the span current in the block; an error of the block marks and ends it."""
        if not self._span.is_recording():
            yield
            return
        with trace.use_span(self._span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except Exception as error:
                self.fail(error)
                raise

    def fail(self, error: Exception) -> None:
        """Marks and ends it."""
        if self._span.is_recording():
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            self._span.end()

    def end(self, result: StepResult, *, start_ns: int) -> None:
        """Records what was drawn, writes the parts, which began at a wall-clock time, and ends."""
        if not self._span.is_recording():
            return
        self._span.set_attributes(
            {
                "signalbox.sampled_tokens": len(result.token_ids),
                "signalbox.wait_ns": result.timings.wait_ns,
            }
        )
        below, at = trace.set_span_in_context(self._span), start_ns
        for name, duration_ns in (
            ("swap", result.timings.swap_ns),
            ("forward", result.timings.forward_ns),
            ("sample", result.timings.sample_ns),
        ):
            part = tracing.get_tracer().start_span(name, context=below, start_time=at)
            at += duration_ns
            part.end(at)
        self._span.end()
