"""The spans of steps: `ExecuteModel`, for the steps that a sampled request asks for.

A request asks for the step that it comes in with, for each chunk of its prefill, for its preemption
and for its last step; the tokens between are sums on its `decode` span. A step is a child of the
first request that asks, so that one trace leads from the client to the worker, and is linked to all
of them, as they are to it. That its tokens are a request's last is seen when the worker has
answered: the span of such a step is written then, without the worker's below it.
"""

from collections.abc import Iterable

from opentelemetry.trace import Status, StatusCode

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.open_spans import RequestTrace, StepTrace
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.results.step_outcome import StepOutcome

METHOD = "signalbox.worker.v1.WorkerService/ExecuteModel"


def begin(plan: StepPlan, *, worker: str) -> None:
    """Opens the span of a step that is about to be sent, if a request asks for it."""
    asking = _asking(plan)
    if not asking:
        return
    first = next(iter(asking)).trace
    assert first is not None
    plan.trace = _open(plan, first, worker=worker)
    for group, why in asking.items():
        _link(plan.trace, group, why)


def _open(
    plan: StepPlan, parent: RequestTrace, *, worker: str, start_ns: int | None = None
) -> StepTrace:
    num_decode = plan.num_decodes
    attributes: dict[str, str | int] = {
        "rpc.system.name": "grpc",
        "rpc.method": METHOD,
        "server.address": worker,
        "signalbox.step_id": plan.step_id,
        "signalbox.sequences": len(plan.seqs),
        "signalbox.prefill_tokens": plan.total_tokens - num_decode,
        "signalbox.decode_tokens": num_decode,
        **{f"signalbox.{name}": number for name, number in plan.section_counts.items()},
    }
    return StepTrace(parent, step_id=plan.step_id, attributes=attributes, start_ns=start_ns)


def _link(step: StepTrace, group: SequenceGroup, why: str) -> None:
    if group.trace is not None:
        step.link(group.trace, request_id=group.request_id, why=why)


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


def end(plan: StepPlan, result: StepResult, outcome: StepOutcome, *, worker: str) -> None:
    """Ends the span of a step that was answered; also makes one, for requests that it ended."""
    for group in outcome.ended:
        if group.trace is not None:
            if plan.trace is None:
                start_ns = group.trace.wall_ns(plan.planned_at)
                plan.trace = _open(plan, group.trace, worker=worker, start_ns=start_ns)
            _link(plan.trace, group, "last")
    if plan.trace is not None:
        times = result.timings._asdict()
        del times["stages"]  # which spans of the worker show
        plan.trace.span.set_attributes({f"signalbox.{name}": ns for name, ns in times.items()})
        plan.trace.span.end()


def abandon(plans: Iterable[StepPlan], *, why: str) -> None:
    """Ends the spans of steps whose results will not come."""
    for plan in plans:
        if plan.trace is not None:
            plan.trace.span.set_status(Status(StatusCode.ERROR, why))
            plan.trace.span.set_attribute("error.type", why)
            plan.trace.span.end()
