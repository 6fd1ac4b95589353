"""The worker's spans of a step that the scheduler traces: `ExecuteModel`, and its parts below.

The parts are written when the step is done, from the times that it took anyhow.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from contract.step import Step
from contract.step_result import StepResult
from rpc.telemetry import tracing

METHOD = "signalbox.worker.v1.WorkerService/ExecuteModel"


class StepSpan:
    """The open span of a step; if it is not sampled, its methods do nothing."""

    __slots__ = ("_span", "_start_ns")

    def __init__(self, step: Step) -> None:
        self._start_ns = time.time_ns()
        self._span = tracing.get_tracer().start_span(
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

    def end(self, result: StepResult) -> None:
        """Records what was drawn, writes the parts, and ends."""
        if not self._span.is_recording():
            return
        self._span.set_attributes(
            {
                "signalbox.sampled_tokens": len(result.token_ids),
                "signalbox.wait_ns": result.timings.wait_ns,
            }
        )
        below, at = trace.set_span_in_context(self._span), self._start_ns
        for name, duration_ns in (
            ("swap", result.timings.swap_ns),
            ("forward", result.timings.forward_ns),
            ("sample", result.timings.sample_ns),
        ):
            part = tracing.get_tracer().start_span(name, context=below, start_time=at)
            at += duration_ns
            part.end(at)
        self._span.end()
