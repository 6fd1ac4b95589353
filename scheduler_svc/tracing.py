"""The spans of a request in the scheduler, written when it ends from the times that it kept."""

import time

from opentelemetry import trace
from opentelemetry.trace import SpanContext, Status, StatusCode

from rpc import telemetry
from scheduler_svc.sequence import SequenceGroup
from scheduler_svc.timeline import GroupTimes

_monotonic_to_wall_ns = time.time_ns() - time.monotonic_ns()


def record_request(group: SequenceGroup, *, now: float) -> None:
    """Writes `scheduler.request` and its phases below the router's span, if that is sampled."""
    if not group.traceparent:
        return
    context = telemetry.extract(group.traceparent, group.tracestate)
    parent: SpanContext = trace.get_current_span(context).get_span_context()
    if not parent.trace_flags.sampled:
        return
    span = telemetry.get_tracer().start_span(
        "scheduler.request",
        context=context,
        start_time=_wall_ns(group.times.arrival),
        attributes={
            "gen_ai.usage.input_tokens": group.num_prompt_tokens,
            "gen_ai.usage.output_tokens": group.num_completion_tokens,
            "signalbox.num_preemptions": group.num_preemptions,
        },
    )
    if group.failure is not None:
        span.set_status(Status(StatusCode.ERROR, group.failure.message))
        span.set_attribute("error.type", group.failure.code.name)
    below = trace.set_span_in_context(span)
    for name, start, end in _phases(group.times, now):
        phase = telemetry.get_tracer().start_span(name, context=below, start_time=_wall_ns(start))
        phase.end(_wall_ns(end))
    span.end(_wall_ns(now))


def _phases(times: GroupTimes, now: float) -> list[tuple[str, float, float]]:
    """Returns (name, start, end) of the phases that began; the last one ends now."""
    starts = [
        ("queue", times.arrival),
        ("prefill", times.first_scheduled),
        ("decode", times.first_token),
    ]
    begun = [(name, start) for name, start in starts if start is not None]
    ends = [start for _, start in begun[1:]] + [now]
    return [(name, start, end) for (name, start), end in zip(begun, ends, strict=True)]


def _wall_ns(seconds: float) -> int:
    return int(seconds * 1e9) + _monotonic_to_wall_ns
