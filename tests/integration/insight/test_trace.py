"""One request is one trace: the router's span, the scheduler's phases, the steps that served it."""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.trace import SpanKind, StatusCode

from signalbox.commands.inspect.chrome_trace import chrome_trace
from signalbox.commands.inspect.span_file import read_spans
from signalbox_protos.common.v1.common_pb2 import TraceContext
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.telemetry import tracing
from signalbox_rpc.telemetry.span_exporters import FileSpanExporter
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from tests.integration.stack import (
    assert_idle,
    restarted,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.integration.test_kv_peers import BLOCK_BYTES, PROMPT, pair
from tests.integration.test_stack import Stack, ask, make_request, make_stack
from tests.ports import free_port
from tests.signalbox.commands.inspect.chrome_format import check_format
from tests.waiting import eventually, with_longer_deadlines

ROUTER_SPAN = "text_completion simulated"
PHASES = ("queue", "prefill", "preempted", "decode", "failover")
UNSAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
SAMPLED = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@dataclass
class Spans(SpanProcessor):
    """What was started and what has ended, in order."""

    num_started: int = 0
    ended: list[ReadableSpan] = field(default_factory=list)

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self.num_started += 1

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def named(self, *names: str) -> list[ReadableSpan]:
        return [span for span in list(self.ended) if span.name in names]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found

    def below(self, parent: ReadableSpan, *names: str) -> list[ReadableSpan]:
        return [span for span in self.named(*names) if parent_id(span) == parent.context.span_id]

    async def until(self, name: str, count: int = 1) -> None:
        await eventually(lambda: len(self.named(name)) >= count)

    async def until_none_is_open(self) -> None:
        await eventually(lambda: self.num_started == len(self.ended))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Spans]:
    """Collects spans; at the end a file of them is one that Perfetto opens."""
    spans, provider = Spans(), TracerProvider()
    provider.add_span_processor(spans)
    monkeypatch.setattr(tracing, "get_tracer", lambda: provider.get_tracer("test"))
    yield spans
    provider.shutdown()
    if spans.ended:
        exporter = FileSpanExporter(str(tmp_path / "spans"))
        exporter.export(spans.ended)
        exporter.shutdown()
        check_format(chrome_trace(read_spans(tmp_path / "spans")))


def parent_id(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def number(span: ReadableSpan, name: str) -> float:
    value = (span.attributes or {})[f"signalbox.{name}"]
    assert isinstance(value, int | float)
    return value


def text(span: ReadableSpan, name: str) -> str:
    return str((span.attributes or {})[name])


def check_time_is_accounted_for(spans: Spans, request: ReadableSpan) -> None:
    """Phases follow each other without gaps, to the nanosecond."""
    phases = spans.below(request, *PHASES)
    for phase, following in itertools.pairwise(phases):
        assert phase.end_time == following.start_time
    assert phases[-1].end_time == request.end_time
    begins, arrives = phases[0].start_time, request.start_time
    assert begins is not None
    assert arrives is not None
    is_resumed = number(request, "attempt") > 1  # then its span begins when it has come here
    assert begins >= arrives if is_resumed else begins == arrives


def steps(spans: Spans, kind: SpanKind) -> list[ReadableSpan]:
    return [span for span in spans.named("ExecuteModel") if span.kind is kind]


async def test_phases_are_children_and_account_for_the_time(spans: Spans) -> None:
    async with make_stack(step_ns=5_000_000) as stack:
        await ask(stack.stub, make_request([1, 2, 3], max_tokens=20))
        await spans.until(ROUTER_SPAN)
    server, request = spans.one(ROUTER_SPAN), spans.one("scheduler.request")
    assert parent_id(request) == server.context.span_id
    assert len(spans.below(server, "tokenize", "route")) == 2
    assert len({span.context.trace_id for span in spans.ended}) == 1
    assert len(spans.below(request, "queue", "prefill", "decode")) == 3
    decode = spans.one("decode")
    assert (number(decode, "steps"), number(decode, "tokens")) == (20, 20)
    mean, p99 = (number(decode, f"time_per_token.{what}_s") for what in ("mean", "p99"))
    assert 0.005 <= mean <= p99
    check_time_is_accounted_for(spans, request)


async def test_steps_lead_to_the_worker_and_are_linked_both_ways(spans: Spans) -> None:
    async with make_stack(max_num_batched_tokens=16) as stack:
        await ask(stack.stub, make_request(list(range(40)), max_tokens=4))
        await spans.until(ROUTER_SPAN)
        await spans.until_none_is_open()
    request, sent, served = (
        spans.one("scheduler.request"),
        steps(spans, SpanKind.CLIENT),
        steps(spans, SpanKind.SERVER),
    )
    links = [text(link, "signalbox.why") for step in sent for link in step.links]
    assert links == ["first", "prefill", "prefill", "last"]
    assert all(link.context == request.context for step in sent for link in step.links)
    assert [link.context for link in request.links] == [step.context for step in sent]
    assert all(parent_id(step) == request.context.span_id for step in sent)
    assert [number(step, "prefill_tokens") for step in sent] == [16, 16, 8, 0]
    assert [parent_id(step) for step in served] == [step.context.span_id for step in sent[:3]]
    for step in served:
        parts = spans.below(step, "swap", "forward", "sample")
        assert [part.name for part in parts] == ["swap", "forward", "sample"]
        assert parts[0].start_time == step.start_time
        assert sum(map(seconds, parts)) <= seconds(step)
    prefill = spans.one("prefill")
    assert (number(prefill, "chunks"), number(prefill, "blocks")) == (3, 3)


async def test_a_step_has_a_span_for_each_pipeline_stage(spans: Spans) -> None:
    async with make_stack(stages=(1, 2, 1), step_ns=8_000_000) as stack:
        await ask(stack.stub, make_request([1, 2, 3], max_tokens=2))
        await spans.until(ROUTER_SPAN)
        await spans.until_none_is_open()
    (step,) = steps(spans, SpanKind.SERVER)
    (forward,) = spans.below(step, "forward")
    stages = spans.below(forward, "stage")
    assert [number(stage, "stage") for stage in stages] == [0, 1, 2]
    assert [number(stage, "rank") for stage in stages] == [2, 1, 0]
    assert [round(1e3 * seconds(stage)) for stage in stages] == [2, 4, 2]
    assert [number(stage, "wait_ns") for stage in stages] == [0, 2_000_000, 6_000_000]
    assert stages[0].start_time == forward.start_time
    assert stages[-1].end_time == forward.end_time


async def test_a_request_that_is_not_sampled_leaves_no_span_anywhere(spans: Spans) -> None:
    async with make_stack() as stack:
        call = stack.stub.Generate(make_request([1, 2, 3]), metadata=[("traceparent", UNSAMPLED)])
        async for _ in call:
            pass
    assert spans.num_started == 0


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
async def test_a_preempted_request_accounts_for_its_time(
    spans: Spans, mode: PreemptionMode
) -> None:
    config = SchedulerConfig(port=0, preemption_mode=mode)
    async with make_stack(
        config=config, num_gpu_blocks=12, num_cpu_blocks=12, step_ns=1_000_000
    ) as stack:
        requests = [make_request([i] * 20, max_tokens=100) for i in range(3)]
        await asyncio.gather(*(ask(stack.stub, request) for request in requests))
        await spans.until(ROUTER_SPAN, count=3)
        await spans.until_none_is_open()
    preempted = spans.named("preempted")
    assert {text(span, "signalbox.mode") for span in preempted} == {mode.name.lower()}
    assert all(number(span, "blocks") > 0 for span in preempted)
    assert all((number(span, "bytes") > 0) is (mode is PreemptionMode.SWAP) for span in preempted)
    asked_for = [
        text(link, "signalbox.why") for s in spans.named("ExecuteModel") for link in s.links
    ]
    assert asked_for.count("preempted") == len(preempted) == asked_for.count("resumed")
    for request in spans.named("scheduler.request"):
        check_time_is_accounted_for(spans, request)
        tokens = [number(decode, "tokens") for decode in spans.below(request, "decode")]
        assert sum(tokens) == 100


@pytest.mark.usefixtures("patient_moves")
async def test_a_fetch_from_another_worker_is_a_span_of_the_request(spans: Spans) -> None:
    async with pair() as two:
        await two.client.add(2, PROMPT, trace_context=TraceContext(traceparent=SAMPLED))
        await two.client.ended(2)
        owner = two.scheduler.cluster.step_loops[0].worker_name
    request, fetch = spans.one("scheduler.request"), spans.one("fetch")
    assert parent_id(fetch) == request.context.span_id
    assert (number(fetch, "blocks"), number(fetch, "bytes")) == (8, 8 * BLOCK_BYTES)
    assert text(fetch, "signalbox.from_worker") == owner
    assert text(spans.one("queue"), "signalbox.reason") == "loading"
    check_time_is_accounted_for(spans, request)


async def test_a_failover_is_a_phase_of_the_request(spans: Spans) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(step_ns=5_000_000)) as first,
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        stack = Stack(scheduler, pb_grpc.InferenceServiceStub(channel))
        call = stack.stub.Generate(make_request([1, 2, 3], max_tokens=60))
        await call.read()
        async with running_worker(scheduler.address, simulated(step_ns=5_000_000)):
            await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
            await first.kill()
            while await call.read() is not grpc.aio.EOF:
                pass
            await spans.until(ROUTER_SPAN)
            await spans.until_none_is_open()
    request, failover = spans.one("scheduler.request"), spans.one("failover")
    assert text(failover, "signalbox.from_worker") != text(failover, "signalbox.to_worker")
    assert number(failover, "replayed_tokens") > 3
    assert number(request, "num_lost_workers") == 1
    check_time_is_accounted_for(spans, request)


async def test_a_request_that_loses_its_scheduler_goes_on_in_its_trace(spans: Spans) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=free_port())) as scheduler,
        running_worker(scheduler.address, simulated(step_ns=5_000_000)),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        call = pb_grpc.InferenceServiceStub(channel).Generate(make_request([1], max_tokens=60))
        await call.read()
        async with restarted(scheduler):
            while await call.read() is not grpc.aio.EOF:
                pass
            await spans.until_none_is_open()
    (server,) = spans.named(ROUTER_SPAN)
    routes = spans.below(server, "route")
    assert [number(route, "route.attempt") for route in routes] == [1, 2]
    lost, resumed = spans.below(server, "scheduler.request")
    assert lost.status.status_code is StatusCode.ERROR
    assert number(routes[1], "replayed_tokens") == 60 - sum(
        number(decode, "tokens") for decode in spans.below(resumed, "decode")
    )
    check_time_is_accounted_for(spans, resumed)


async def test_requests_that_are_aborted_while_a_worker_is_lost_leave_no_span_open(
    spans: Spans,
) -> None:
    slow = {"num_gpu_blocks": 40, "num_cpu_blocks": 20, "step_ns": 3_000_000}
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(**slow)) as lost,
        running_worker(scheduler.address, simulated(**slow)),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        stack = Stack(scheduler, pb_grpc.InferenceServiceStub(channel))
        calls = [  # those that are cancelled would last longest
            stack.stub.Generate(make_request([i] * 20, max_tokens=300 if i % 2 else 600))
            for i in range(24)
        ]
        await calls[0].read()
        killing = asyncio.create_task(lost.kill())
        for call in calls[::2]:
            await asyncio.sleep(0.005)
            call.cancel()
        await killing
        for call in calls[1::2]:
            while await call.read() is not grpc.aio.EOF:
                pass
        await assert_idle(stack.scheduler)
        await spans.until_none_is_open()
    codes = Counter(span.status.status_code for span in spans.named(ROUTER_SPAN))
    assert codes == {StatusCode.ERROR: 12, StatusCode.UNSET: 12}
    for request in spans.named("scheduler.request"):
        check_time_is_accounted_for(spans, request)


async def test_a_request_out_of_time_ends_its_spans_with_an_error(spans: Spans) -> None:
    async with make_stack(step_ns=20_000_000) as stack:

        async def is_late(deadline_s: float) -> bool:
            late = stack.stub.Generate(make_request([1], max_tokens=2000), timeout=deadline_s)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in late:
                    pass
            await assert_idle(stack.scheduler)
            await spans.until_none_is_open()
            return bool(spans.named("scheduler.request"))

        await with_longer_deadlines(is_late)
    of_router = spans.named(ROUTER_SPAN)[-1]
    # At its deadline the client also resets the stream, and either may reach the router first.
    assert text(of_router, "error.type") in ("DEADLINE_EXCEEDED", "CANCELLED")
    assert spans.one("scheduler.request").status.status_code is StatusCode.ERROR
