"""What a trace backend gets of a request."""

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_rpc.telemetry import tracing
from tests.grpc_errors import code_of
from tests.router.apis.openai.clients import make_http
from tests.router.generation.pooling.pooling_stack import EMBEDS, SCORES, embed, make_pooling_stack
from tests.router.stack import drafting, make_generate, make_stack, saying
from tests.waiting import eventually, with_longer_deadlines

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "get_tracer", lambda: provider.get_tracer("test"))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)  # libraries ask for it
    yield exporter
    provider.shutdown()


def spans_by_name(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    return {span.name: span for span in exporter.get_finished_spans()}


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_request_is_one_trace_from_client_to_scheduler(
    exporter: InMemorySpanExporter,
) -> None:
    async with make_stack(saying(" Paris", "!")) as stack:
        request = make_generate(
            request_id="mine", sampling_params=pb.SamplingParams(temperature=0, seed=7, n=1)
        )
        metadata = (("traceparent", TRACEPARENT), ("tracestate", "a=b"))
        async for _ in stack.client.Generate(request, metadata=metadata):
            pass
        await eventually(lambda: len(exporter.get_finished_spans()) == 3)
        spans = spans_by_name(exporter)
        server, tokenize = spans["text_completion tiny"], spans["tokenize"]
        assert server.kind is SpanKind.SERVER
        assert server.parent is not None
        assert f"{server.context.trace_id:032x}" == TRACE_ID
        assert tokenize.parent == server.context
        assert spans["route"].parent is not None
        assert spans["route"].parent.span_id == server.context.span_id
        route = attributes_of(spans["route"])
        assert route["server.address"].startswith("127.0.0.1:")
        assert route["signalbox.route.attempt"] == 1
        sent = stack.scheduler.added[0].trace_context
        assert sent.traceparent == f"00-{TRACE_ID}-{server.context.span_id:016x}-01"
        assert sent.tracestate == "a=b"
        attributes = attributes_of(server)
        assert attributes["gen_ai.response.id"] == "mine"
        assert attributes["gen_ai.usage.input_tokens"] == 7
        assert attributes["gen_ai.response.finish_reasons"] == ("length",)
        assert attributes["rpc.status_code"] == "OK"
        assert attributes["gen_ai.response.time_to_first_chunk"] > 0
        assert "Paris" not in str(attributes)
        assert not any("speculation" in name for name in attributes)


async def test_a_span_says_what_became_of_drafts(exporter: InMemorySpanExporter) -> None:
    async with make_stack(drafting(num_runs=1, num_drafts=4, num_accepted=2)) as stack:
        await stack.generate()
        await eventually(lambda: len(exporter.get_finished_spans()) == 3)
        attributes = attributes_of(spans_by_name(exporter)["text_completion tiny"])
    assert attributes["signalbox.speculation.num_drafts"] == 4
    assert attributes["signalbox.speculation.num_accepted"] == 2


async def test_requests_that_do_not_end_well_end_their_spans_with_a_code(
    exporter: InMemorySpanExporter,
) -> None:
    async with make_stack() as stack:
        refused = stack.generate(sampling_params=pb.SamplingParams(top_p=2))
        assert await code_of(refused) is grpc.StatusCode.INVALID_ARGUMENT

        async def is_late(deadline_s: float) -> bool:
            late = aiter(stack.client.Generate(make_generate(), timeout=deadline_s))
            assert await code_of(anext(late)) is grpc.StatusCode.DEADLINE_EXCEEDED
            await stack.check_nothing_is_left()
            return bool(stack.scheduler.added)

        await with_longer_deadlines(is_late)
        num_late = len(stack.scheduler.added)
        cancelled = asyncio.create_task(stack.generate(request_id="c"))
        await stack.added(num_late + 1)
        cancelled.cancel()
        await stack.check_nothing_is_left()
    spans = [s for s in exporter.get_finished_spans() if s.kind is SpanKind.SERVER]
    first, *late, last = (attributes_of(span)["error.type"] for span in spans)
    assert (first, last) == ("INVALID_ARGUMENT", "CANCELLED")
    # At its deadline the client also resets the stream, and either may reach the router first.
    assert {*late} <= {"DEADLINE_EXCEEDED", "CANCELLED"}
    assert not any(span.status.is_ok for span in spans)


async def test_what_is_no_request_to_generate_leaves_its_caller_a_span_with_a_code(
    exporter: InMemorySpanExporter,
) -> None:
    headers = {"traceparent": TRACEPARENT}
    async with make_http() as http:
        for path, body in (("completions", b"{"), ("chat/completions", b'{"colour": 1}')):
            await http.raw.post(f"/v1/{path}", content=body, headers=headers)
        negative = {"prompt": "a", "max_tokens": -1}
        await http.raw.post("/v1/completions", json=negative, headers=headers)
        empty = http.stack.client.Generate(pb.GenerateRequest(), metadata=[*headers.items()])
        assert await code_of(anext(aiter(empty))) is grpc.StatusCode.INVALID_ARGUMENT
        http.stack.scheduler.has_worker = False
        await http.stack.wait_serving(False)
        await http.raw.post("/v1/completions", json={"prompt": "a"}, headers=headers)
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans] == [
        "text_completion tiny",
        "chat tiny",
        "text_completion tiny",
        "text_completion tiny",
        "text_completion",
    ]
    for span in spans:
        assert span.context.trace_id == int(TRACE_ID, 16)
        assert span.kind is SpanKind.SERVER
        assert not span.status.is_ok
    assert [attributes_of(span)["error.type"] for span in spans] == [
        *["INVALID_ARGUMENT"] * 4,
        "UNAVAILABLE",
    ]
    assert [attributes_of(span).get("http.response.status_code") for span in spans] == [
        *[400] * 3,
        None,
        503,
    ]


async def test_a_span_says_what_its_request_was_pooled_to(exporter: InMemorySpanExporter) -> None:
    async with make_pooling_stack() as stack:
        await embed(stack, "a", request_id="mine")
    async with make_pooling_stack(SCORES, vector_of=lambda _: [1]) as stack:
        await stack.client.Score(pb.ScoreRequest(queries=["q"], documents=["d"]))
    spans = [s for s in exporter.get_finished_spans() if s.kind is SpanKind.SERVER]
    embedded, scored = map(attributes_of, spans)
    assert embedded["gen_ai.operation.name"] == "embeddings"
    assert embedded["gen_ai.response.id"] == "mine"
    assert embedded["signalbox.pooling.task"] == "embed"
    assert embedded["gen_ai.embeddings.dimension.count"] == EMBEDS.num_outputs
    assert scored["signalbox.pooling.task"] == "classify"
    assert "gen_ai.embeddings.dimension.count" not in scored
    assert not any(name.startswith("gen_ai.request.t") for name in (*embedded, *scored))
