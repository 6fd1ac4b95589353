"""Converts between the scheduler's dataclasses and the messages of worker.v1."""

from contract import grammar_cost, structured_output
from protos.worker.v1 import worker_pb2 as pb
from scheduler_svc.planning.plan import StepPlan
from scheduler_svc.planning.worker_grammars import Preparation


def set_trace_context(message: pb.ExecuteModelRequest, plan: StepPlan) -> None:
    """Lets the worker's spans begin below the step's, if that has one."""
    if plan.trace is not None:
        traceparent, tracestate = plan.trace.trace_context
        message.trace_context.traceparent = traceparent
        message.trace_context.tracestate = tracestate


def prepare_request(preparation: Preparation, *, epoch: int) -> pb.PrepareGrammarRequest:
    message = pb.PrepareGrammarRequest(epoch=epoch, cost=grammar_cost.encode(preparation.cost))
    structured_output.encode(message.structured_output, preparation.constraint)
    for constraint in preparation.forgotten:
        structured_output.encode(message.forgotten.add(), constraint)
    return message
