"""One request is one trace: the router's span, and the scheduler's phases below it."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from rpc import telemetry
from tests.integration.stack import eventually
from tests.integration.test_stack import ask, make_request, make_stack


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "get_tracer", lambda: provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


async def test_phases_are_children_and_account_for_the_time(
    exporter: InMemorySpanExporter,
) -> None:
    async with make_stack(step_ns=5_000_000) as stack:
        await ask(stack.stub, make_request([1, 2, 3], max_tokens=20))
        await eventually(lambda: "text_completion simulated" in by_name(exporter))
    spans = by_name(exporter)
    request = spans["scheduler.request"]
    assert request.parent is not None
    assert request.parent.span_id == spans["text_completion simulated"].context.span_id
    assert len({span.context.trace_id for span in spans.values()}) == 1
    phases = [spans[name] for name in ("queue", "prefill", "decode")]
    assert all(phase.parent == request.context for phase in phases)
    assert sum(map(seconds, phases)) == pytest.approx(seconds(request), rel=0.05)


async def test_an_aborted_request_ends_its_spans_with_an_error(
    exporter: InMemorySpanExporter,
) -> None:
    async with make_stack(step_ns=5_000_000) as stack:
        call = stack.stub.Generate(make_request([1, 2, 3], max_tokens=2000))
        await call.read()
        call.cancel()
        await stack.until_free()
        await eventually(lambda: "text_completion simulated" in by_name(exporter))
    for name in ("scheduler.request", "text_completion simulated"):
        assert by_name(exporter)[name].status.status_code is StatusCode.ERROR, name
