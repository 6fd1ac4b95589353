"""Between the scheduler's dataclasses and the messages of worker.v1."""

from contract import grammar_cost, logprobs, structured_output
from contract.columns import int32_list, int64_list
from contract.errors import Code
from contract.logprobs import PromptLogprobs
from contract.updates import RequestFailure
from protos.worker.v1 import worker_pb2 as pb
from scheduler_svc.errors import worker_failure
from scheduler_svc.planning.plan import StepAnswer, StepPlan, StepTimings
from scheduler_svc.planning.worker_grammars import Preparation

# To workers


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


# From workers


def step_answer(message: pb.ExecuteModelResponse) -> StepAnswer:
    timings = message.timings
    answer = StepAnswer(
        step_id=message.step_id,
        seq_ids=int64_list(message.seq_ids),
        token_ids=int32_list(message.token_ids),
        timings=StepTimings(
            timings.wait_ns, timings.swap_ns, timings.forward_ns, timings.sample_ns
        ),
        max_num_batched_tokens=message.max_num_batched_tokens or None,
    )
    if entries := message.logprobs:
        answer.logprobs = {entry.row: logprobs.decode(entry) for entry in entries}
    if runs := message.prompt_logprobs:
        answer.prompt_logprobs = [_prompt_logprobs(run) for run in runs]
    if errors := message.errors:
        answer.failures = {error.seq_id: _failure(error) for error in errors}
    return answer


def _prompt_logprobs(run: pb.PromptLogprobs) -> PromptLogprobs:
    entries = [logprobs.decode(entry) for entry in run.logprobs]
    return PromptLogprobs(run.seq_id, run.first_position, entries)


def _failure(error: pb.SequenceError) -> RequestFailure:
    is_refusal = error.code == Code.FAILED_PRECONDITION
    return worker_failure(error.message, is_refusal=is_refusal)
