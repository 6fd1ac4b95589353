"""The worker's spans of a step that the scheduler traces: `ExecuteModel`, and its parts below.

The parts are written when the step is done, from the times that it took anyhow.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from signalbox_contract.model import WorkerCapacity, WorkerRank
from signalbox_contract.step import Step
from signalbox_contract.step_result import Stages, StepResult
from signalbox_rpc.telemetry import tracing

METHOD = "signalbox.worker.v1.WorkerService/ExecuteModel"


class StepSpan:
    """The open span of a step; if it is not sampled, its methods do nothing."""

    __slots__ = ("_ranks", "_span", "_start_ns")

    def __init__(self, step: Step, capacity: WorkerCapacity) -> None:
        self._ranks = capacity.ranks
        self._start_ns = time.time_ns()
        self._span = tracing.get_tracer().start_span(
            "ExecuteModel",
            context=tracing.extract(step.traceparent, step.tracestate),
            kind=SpanKind.SERVER,
            start_time=self._start_ns,  # which is that of its first part, too
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
        if self._span.is_recording():
            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            self._span.end()

    def end(self, result: StepResult, *, stages_ns: int = 0) -> None:
        """Records what was drawn, writes the parts, and ends.

        Args:
            stages_ns: what the step took in all stages, the ways between them included.
        """
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
            ("forward", stages_ns or result.timings.forward_ns),
            ("sample", result.timings.sample_ns),
        ):
            part = tracing.get_tracer().start_span(name, context=below, start_time=at)
            if name == "forward":
                self._write_stages(part, result.timings.stages, at, duration_ns)
            at += duration_ns
            part.end(at)
        self._span.end()

    def _write_stages(self, forward: Span, stages: Stages, at: int, duration_ns: int) -> None:
        """Writes a span for each stage below the forward pass.

        Each stage has measured durations by a clock of its own. What they leave of the whole, which
        this rank has measured, is divided evenly among the ways: to the first stage, and between
        two.
        """
        below = trace.set_span_in_context(forward)
        first_ranks = {one.stage: one for one in reversed(self._ranks)}
        known_ns = sum(stage.queue_ns + stage.forward_ns for stage in stages)
        for number, times in enumerate(stages):
            at += max(0, duration_ns - known_ns) // len(stages) + times.queue_ns
            span = tracing.get_tracer().start_span(
                "stage",
                context=below,
                start_time=at,
                attributes={
                    "signalbox.stage": number,
                    **_place(first_ranks.get(number)),
                    **{f"signalbox.{name}": value for name, value in times._asdict().items()},
                },
            )
            at += times.forward_ns
            span.end(at)


def _place(rank: WorkerRank | None) -> dict[str, str | int]:
    if rank is None:
        return {}
    place: dict[str, str | int] = {"signalbox.rank": rank.rank}
    if rank.num_layers:
        last = rank.first_layer + rank.num_layers - 1
        place["signalbox.layers"] = f"{rank.first_layer}-{last}"
    return place | ({"host.name": rank.host} if rank.host else {})
