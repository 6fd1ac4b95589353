"""Our encoder of spans makes the messages that OpenTelemetry's makes."""

from collections.abc import Sequence
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as expected
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    TraceState,
    set_span_in_context,
)

from rpc.telemetry.span_encoding import encode_spans

NUMBERS = (0, 1, -1, 127, 128, 2**31, 2**63 - 1, -(2**63), 0.0, -0.5, 1e300)


def made(provider: TracerProvider, *makers: object) -> Sequence[ReadableSpan]:
    """Returns the spans that `makers` make and end."""
    kept = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("test", "1.0")
    for make in makers:
        make(tracer).end()  # type: ignore[operator]
    return kept.get_finished_spans()


def plain(tracer: Tracer) -> Span:
    return tracer.start_span("a")


def with_attributes(tracer: Tracer) -> Span:
    span = tracer.start_span("naïve ☃", attributes={f"n{i}": n for i, n in enumerate(NUMBERS)})
    span.set_attributes({"yes": True, "no": False, "one": 1, "text": "x" * 300, "empty": ""})
    span.set_attributes({"texts": ["a", "b"], "none": [], "numbers": [1, 2], "flags": [True]})
    span.set_attributes({"one as a number": 1.0, "again": 1, "list of floats": [1.0]})
    return span


def with_a_remote_parent(tracer: Tracer) -> Span:
    state = TraceState([("vendor", "x"), ("other", "y")])
    parent = SpanContext(7, 2**64 - 1, is_remote=True, trace_state=state)
    return tracer.start_span(
        "child", set_span_in_context(NonRecordingSpan(parent), Context()), kind=SpanKind.SERVER
    )


def with_links_and_events(tracer: Tracer) -> Span:
    links = [
        Link(SpanContext(9, i, is_remote=i == 2), {"signalbox.why": "first"}) for i in range(1, 5)
    ]
    span = tracer.start_span("linked", links=links, kind=SpanKind.CLIENT)
    for i in range(5):
        span.add_event("chunk", {"i": i}, timestamp=1_700_000_000_000_000_000 + i)
    return span


def failed(tracer: Tracer) -> Span:
    span = tracer.start_span("failed")
    span.set_status(Status(StatusCode.ERROR, "CANCELLED: the client left"))
    return span


def fine(tracer: Tracer) -> Span:
    span = tracer.start_span("fine")
    span.set_status(StatusCode.OK)
    return span


MAKERS = (plain, with_attributes, with_a_remote_parent, with_links_and_events, failed, fine)


@pytest.mark.parametrize("make", MAKERS)
def test_a_span_is_encoded_as_by_opentelemetry(make: object) -> None:
    spans = made(TracerProvider(resource=Resource({"service.name": "s"})), make)
    assert encode_spans(spans) == expected(spans)


ODD_VALUES: tuple[Any, ...] = (
    0.0,
    -0.0,  # after what it equals
    float("inf"),
    b"\xff\x00",
    None,
    ["a", None],
    {"a": {"b": [1, "x"]}, "empty": {}},
    2**63,
    -(2**63) - 1,
    [1, 2**64],
    {"a": 2**63},
)


@pytest.mark.parametrize("value", ODD_VALUES)
def test_an_odd_value_is_encoded_or_left_out_as_by_opentelemetry(value: Any) -> None:
    def odd(tracer: Tracer) -> Span:
        return tracer.start_span("odd", attributes={"odd": value, "after": 1})

    spans = made(TracerProvider(), odd)
    assert "odd" in (spans[0].attributes or {})
    # Messages compare -0.0 and 0.0 as equal.
    actual, reference = encode_spans(spans), expected(spans)
    assert actual.SerializeToString(deterministic=True) == (
        reference.SerializeToString(deterministic=True)
    )


def test_what_is_no_unicode_costs_nobody_else_a_span() -> None:
    def half(tracer: Tracer) -> Span:
        span = tracer.start_span("half \ud83d", attributes={"text": "\ud800", "k\udfff": 1})
        span.add_event("event \ud83d")
        span.set_status(Status(StatusCode.ERROR, "\ud83d"))
        return span

    spans = made(TracerProvider(), plain, half, fine)
    (scope,) = encode_spans(spans).resource_spans[0].scope_spans
    assert [span.name for span in scope.spans] == ["a", "half \\ud83d", "fine"]
    odd = scope.spans[1]
    assert (odd.events[0].name, odd.status.message) == ("event \\ud83d", "\\ud83d")
    assert [one.key for one in odd.attributes] == ["text", "k\\udfff"]


def test_what_was_dropped_is_counted() -> None:
    limits = SpanLimits(max_links=2, max_events=3, max_attributes=1)
    spans = made(TracerProvider(span_limits=limits), *MAKERS)
    assert encode_spans(spans) == expected(spans)
    assert any(span.dropped_links for span in spans)


def test_spans_are_together_by_resource_and_scope() -> None:
    one = made(TracerProvider(resource=Resource({"service.name": "one"})), plain, failed)
    two = made(TracerProvider(resource=Resource({"service.name": "two"})), fine)
    assert encode_spans([*one, *two]) == expected([*one, *two])
    assert not encode_spans([]).resource_spans
