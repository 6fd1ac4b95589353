"""The spans of steps: `ExecuteModel`, for the steps that a sampled request asks for.

A request asks for the step that it comes in with, for each chunk of its prefill, for its preemption
and for its last step; the tokens between are sums on its `decode` span. A step is a child of the
first request that asks, so that one trace leads from the client to the worker, and is linked to all
of them, as they are to it. That its tokens are a request's last is seen when the worker has
answered: the span of such a step is written then, without the worker's below it.
"""

from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context

from rpc import telemetry
from scheduler_svc.plan import StepAnswer, StepOutcome, StepPlan
from scheduler_svc.sequence import SequenceGroup
from scheduler_svc.tracing import RequestTrace

METHOD = "signalbox.worker.v1.WorkerService/ExecuteModel"


class StepTrace:
    """The open span of one step."""

    __slots__ = ("_worker", "span", "step_id")

    def __init__(self, plan: StepPlan, parent: RequestTrace, worker: str, start_ns: int | None):
        self.step_id = plan.step_id
        self._worker = worker
        self.span: Span = telemetry.get_tracer().start_span(
            "ExecuteModel",
            context=parent.context,
            kind=SpanKind.CLIENT,
            start_time=start_ns,
            attributes={
                "rpc.system.name": "grpc",
                "rpc.method": METHOD,
                "server.address": worker,
                **_numbers(plan),
            },
        )

    @property
    def trace_context(self) -> tuple[str, str]:
        """W3C traceparent and tracestate for the worker."""
        return telemetry.inject(set_span_in_context(self.span, Context()))

    def link(self, group: SequenceGroup, why: str) -> None:
        """Links step and request to each other."""
        if group.trace is None:
            return
        request = group.trace.span
        here = {"signalbox.request_id": group.request_id, "signalbox.why": why}
        self.span.add_link(request.get_span_context(), here)
        there: dict[str, str | int] = {"signalbox.step_id": self.step_id, "signalbox.why": why}
        request.add_link(self.span.get_span_context(), there)

    def set_answer(self, answer: StepAnswer) -> None:
        """Notes where the worker's time went."""
        self.span.set_attributes(
            {f"signalbox.{name}": ns for name, ns in answer.timings._asdict().items()}
        )


def _numbers(plan: StepPlan) -> dict[str, int]:
    num_decode = plan.num_new_tokens.count(1)
    return {
        "signalbox.step_id": plan.step_id,
        "signalbox.sequences": len(plan.seqs),
        "signalbox.prefill_tokens": plan.total_tokens - num_decode,
        "signalbox.decode_tokens": num_decode,
        "signalbox.blocks_swapped_out": len(plan.swap_out),
        "signalbox.blocks_swapped_in": len(plan.swap_in),
        "signalbox.blocks_copied": len(plan.copy),
    }


def begin(plan: StepPlan, *, worker: str) -> None:
    """Opens the span of a step that is about to be sent, if a request asks for it."""
    asking = _asking(plan) if RequestTrace.num_open else {}
    if not asking:
        return
    first = next(iter(asking)).trace
    assert first is not None
    plan.trace = StepTrace(plan, first, worker, None)
    for group, why in asking.items():
        plan.trace.link(group, why)


def _asking(plan: StepPlan) -> dict[SequenceGroup, str]:
    """Returns the sampled requests to which more happens than a token, and what."""
    asking = {group: "preempted" for group in plan.preempted if group.trace is not None}
    if plan.total_tokens > len(plan.seqs):
        for seq, num_new_tokens in zip(plan.seqs, plan.num_new_tokens, strict=True):
            if num_new_tokens > 1 and seq.group.trace is not None:
                asking[seq.group] = "prefill"
    for index in plan.new:
        group = plan.seqs[index].group
        if group.trace is not None:
            asking[group] = "resumed" if group.timeline.has_resumed else "first"
    return asking


def end(plan: StepPlan, answer: StepAnswer, outcome: StepOutcome, *, worker: str) -> None:
    """Ends the span of a step that was answered; also makes one, for requests that it ended."""
    for group in outcome.ended:
        if group.trace is not None:
            if plan.trace is None:
                start_ns = group.trace.wall_ns(plan.planned_at)
                plan.trace = StepTrace(plan, group.trace, worker, start_ns)
            plan.trace.link(group, "last")
    if plan.trace is not None:
        plan.trace.set_answer(answer)
        plan.trace.span.end()


def abandon(plans: Iterable[StepPlan], *, why: str) -> None:
    """Ends the spans of steps that nobody will answer."""
    for plan in plans:
        if plan.trace is not None:
            plan.trace.span.set_status(Status(StatusCode.ERROR, why))
            plan.trace.span.set_attribute("error.type", why)
            plan.trace.span.end()
