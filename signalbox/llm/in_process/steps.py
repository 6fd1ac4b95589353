"""Converts the worker's result of a step to the scheduler's answer, without messages.

The step itself needs no conversion: the worker takes the `Step` that `StepPlan.to_step` returns.
"""

from gpu_worker.step import StepResult
from scheduler_svc.errors import worker_failure
from scheduler_svc.planning.plan import StepAnswer, StepTimings


def answer(result: StepResult) -> StepAnswer:
    """Returns the scheduler's view of a step's result."""
    return StepAnswer(
        step_id=result.step_id,
        seq_ids=result.seq_ids.tolist(),
        token_ids=result.token_ids.tolist(),
        logprobs=result.logprobs,
        prompt_logprobs=result.prompt_logprobs,
        failures={
            failed.seq_id: worker_failure(failed.message, is_refusal=failed.is_refusal)
            for failed in result.failures
        },
        timings=StepTimings(result.wait_ns, result.swap_ns, result.forward_ns, result.sample_ns),
    )
