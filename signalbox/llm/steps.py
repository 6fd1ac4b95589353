"""From the scheduler's plan to the worker's step and back, with no message in between.

Does what the two codecs do together. What it hands over is a copy: the worker reads it on its own
thread while the scheduler goes on planning.
"""

from dataclasses import replace

import numpy as np

from gpu_worker.step import (
    NO_COPIES,
    BlockMapping,
    BlockTablePatch,
    Fork,
    NewSequence,
    Step,
    StepResult,
)
from rpc.sampling_params import SamplingParams
from scheduler_svc import sequence
from scheduler_svc.block_allocator import BlockCopy
from scheduler_svc.errors import worker_failure
from scheduler_svc.plan import PromptLogprobs, StepAnswer, StepPlan, StepTimings, TokenLogprobs


def step(plan: StepPlan, *, epoch: int) -> Step:
    """Returns the worker's step; to be called before anything else happens to its sequences."""
    seqs, num_new_tokens, running = plan.seqs, plan.num_new_tokens, plan.running
    return Step(
        epoch=epoch,
        step_id=plan.step_id,
        finished=np.array(plan.forget, dtype=np.int64),
        forks=[Fork(*fork) for fork in plan.forks],
        new=[_new_sequence(plan, index) for index in plan.new],
        running_seq_ids=np.array([seqs[i].seq_id for i in running], dtype=np.int64),
        running_num_new_tokens=np.array([num_new_tokens[i] for i in running], dtype=np.int32),
        patches=[BlockTablePatch(*patch) for patch in plan.patches],
        swap_out=_mapping(plan.swap_out),
        swap_in=_mapping(plan.swap_in),
        copy=_mapping(plan.copy),
    )


def _new_sequence(plan: StepPlan, index: int) -> NewSequence:
    seq = plan.seqs[index]
    group = seq.group
    return NewSequence(
        seq_id=seq.seq_id,
        branch=seq.branch,
        token_ids=seq.token_ids,
        num_prompt_tokens=group.num_prompt_tokens,
        num_computed_tokens=seq.num_computed_tokens,
        num_new_tokens=plan.num_new_tokens[index],
        block_table=seq.block_table.copy(),
        num_samples=group.num_draws,
        params=_params(group),
    )


def _params(group: sequence.SequenceGroup) -> SamplingParams:
    if group.wants_prompt_logprobs:
        return group.params
    return replace(group.params, num_prompt_logprobs=None)


def _mapping(copies: list[BlockCopy]) -> BlockMapping:
    if not copies:
        return NO_COPIES
    src, dst = np.ascontiguousarray(np.array(copies, dtype=np.int32).T)
    return BlockMapping(src, dst)


def answer(result: StepResult) -> StepAnswer:
    """Returns the scheduler's view of what a step gave."""
    return StepAnswer(
        step_id=result.step_id,
        seq_ids=result.seq_ids.tolist(),
        token_ids=result.token_ids.tolist(),
        logprobs={found.row: TokenLogprobs(*found[1:]) for found in result.logprobs},
        prompt_logprobs=[
            PromptLogprobs(
                run.seq_id,
                run.first_position,
                [TokenLogprobs(*found[1:]) for found in run.logprobs],
            )
            for run in result.prompt_logprobs
        ],
        failures={
            failed.seq_id: worker_failure(failed.message, is_refusal=failed.is_refusal)
            for failed in result.failures
        },
        timings=StepTimings(result.wait_ns, result.swap_ns, result.forward_ns, result.sample_ns),
    )
