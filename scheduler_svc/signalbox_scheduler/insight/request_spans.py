"""The spans of requests in the scheduler: `scheduler.request`, and its phases below it.

A request's span is open while the request lives, so that steps can link to it; its phases are
written when it ends, from its timeline. A request whose router did not sample it has none of that,
and is told from the others by `group.trace` being None.
"""

import time
from collections.abc import Iterable

from opentelemetry.trace import Status, StatusCode

from signalbox_rpc.telemetry import tracing
from signalbox_scheduler.requests.open_spans import RequestTrace
from signalbox_scheduler.requests.phases import BlockUnit, RequestPhase, phases_of
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent
from signalbox_scheduler.results.step_outcome import StepOutcome


def begin(group: SequenceGroup, *, now: float) -> None:
    """Opens the span of a request that has just arrived, if it is sampled.

    One that goes on here has arrived long ago, elsewhere: that part of its time is another span's.
    """
    if not group.request.traceparent:
        return
    offset_ns = time.time_ns() - int(now * 1e9)
    arrival = now if group.request.attempt else group.times.arrival
    span = tracing.get_tracer().start_span(
        "scheduler.request",
        context=tracing.extract(group.request.traceparent, group.request.tracestate),
        start_time=int(arrival * 1e9) + offset_ns,
        attributes={
            "gen_ai.response.id": group.request_id,
            "gen_ai.usage.input_tokens": group.num_prompt_tokens,
            "gen_ai.request.max_tokens": group.max_tokens,
            "signalbox.attempt": group.request.attempt + 1,
        },
    )
    if span.is_recording():
        group.trace = RequestTrace(span, offset_ns=offset_ns)
        RequestTrace.num_open += 1


def record_tokens(outcome: StepOutcome, now: float) -> None:
    """Records when tokens of sampled requests came."""
    for seq in outcome.seqs:
        if (traced := seq.group.trace) is not None:
            traced.token_times.append(now)


def end(group: SequenceGroup, *, now: float, block: BlockUnit) -> None:
    """Writes the phases of a request that has ended, and ends its span."""
    traced, group.trace = group.trace, None
    if traced is None:
        return
    RequestTrace.num_open -= 1
    for phase in phases_of(
        group.timeline.events, token_times=traced.token_times, end=now, block=block
    ):
        if phase.name == "failover":  # all that the client had is computed again
            num_sampled = sum(at <= phase.start for at in traced.token_times)
            num_replayed = group.num_prompt_tokens + num_sampled
            phase.attributes["signalbox.replayed_tokens"] = num_replayed
        _write(traced, phase)
    _add_events(traced, group.timeline.events)
    traced.span.set_attributes(
        {
            "gen_ai.usage.output_tokens": group.num_completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": group.num_cached_tokens,
            "signalbox.num_preemptions": group.num_preemptions,
            "signalbox.num_lost_workers": group.num_lost_workers,
            "signalbox.num_dropped_events": group.timeline.num_dropped,
        }
    )
    if group.failure is not None:
        code = group.failure.code.name
        traced.span.set_status(Status(StatusCode.ERROR, f"{code}: {group.failure.message}"))
        traced.span.set_attribute("error.type", code)
    traced.span.end(traced.wall_ns(now))


def _write_fetch(traced: RequestTrace, event: TimelineEvent) -> None:
    """Writes the span of blocks that came from a store, or from another worker."""
    attributes: dict[str, str | int] = {
        "signalbox.blocks": event.num_blocks,
        "signalbox.bytes": event.num_bytes,
    }
    if event.source:
        attributes["signalbox.from_worker"] = event.source
    if event.store:
        attributes["signalbox.store"] = event.store
    if event.detail:
        attributes["error.type"] = event.detail
    start = traced.wall_ns(event.at - event.seconds)
    tracer = tracing.get_tracer()
    span = tracer.start_span(
        "fetch", context=traced.context, start_time=start, attributes=attributes
    )
    span.end(traced.wall_ns(event.at))


def _write(traced: RequestTrace, phase: RequestPhase) -> None:
    span = tracing.get_tracer().start_span(
        phase.name,
        context=traced.context,
        start_time=traced.wall_ns(phase.start),
        attributes=phase.attributes,
    )
    for chunk in phase.chunks:
        span.add_event(
            "chunk",
            {"signalbox.step_id": chunk.step_id, "signalbox.tokens": chunk.num_tokens},
            timestamp=traced.wall_ns(chunk.at),
        )
    span.end(traced.wall_ns(phase.end))


def _add_events(traced: RequestTrace, events: Iterable[TimelineEvent]) -> None:
    """Adds what is no phase: fetches, forks, and sequences that end before their group."""
    for event in events:
        at = traced.wall_ns(event.at)
        if event.kind is EventKind.FORKED:
            traced.span.add_event("forked", {"signalbox.sequences": event.num_sequences}, at)
        elif event.kind is EventKind.FETCHED:
            _write_fetch(traced, event)
        elif event.kind is EventKind.SEQUENCE_FINISHED:
            branch: dict[str, str | int] = {
                "signalbox.branch": event.branch,
                "signalbox.reason": event.detail,
            }
            traced.span.add_event("sequence_finished", branch, at)
        elif event.kind is EventKind.MIGRATED:
            moved: dict[str, str | int | float] = {
                "signalbox.to_worker": event.worker,
                "signalbox.blocks": event.num_blocks,
                "signalbox.bytes": event.num_bytes,
                "signalbox.paused_s": event.seconds,
            }
            traced.span.add_event("migrated", moved, at)


def write_audit(group: SequenceGroup, event: TimelineEvent) -> None:
    """Writes the span of an audit into the trace of the request that it has computed again."""
    request = group.request
    if not request.traceparent:
        return
    offset_ns = time.time_ns() - int(event.at * 1e9)
    span = tracing.get_tracer().start_span(
        "audit",
        context=tracing.extract(request.traceparent, request.tracestate),
        start_time=int((event.at - event.seconds) * 1e9) + offset_ns,
        attributes={
            "gen_ai.response.id": group.request_id,
            "server.address": event.worker,
            "signalbox.tokens": event.num_tokens,
        },
    )
    if event.detail:
        span.set_status(Status(StatusCode.ERROR, event.detail))
        span.set_attribute("error.type", "audit_differs")
    span.end(int(event.at * 1e9) + offset_ns)
