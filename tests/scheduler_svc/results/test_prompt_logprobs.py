"""Each position of a prompt is told once, whatever is computed again, to a router that is there."""

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.logprobs import PromptLogprobs, TokenLogprobs
from signalbox_contract.step_result import StepResult
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from tests.scheduler_svc.make import make_request, make_scheduler

PROMPT = [1, 2, 3, 4, 5, 6, 7]


def step(scheduler: Scheduler, group: SequenceGroup, *, first: int, last: int) -> StepOutcome:
    """Plans a chunk; the worker answers with these positions, and a token at the prompt's end."""
    plan = scheduler.schedule(1.0)
    assert plan is not None
    return answer(scheduler, group, first=first, last=last)


def answer(scheduler: Scheduler, group: SequenceGroup, *, first: int, last: int) -> StepOutcome:
    plan = scheduler.in_flight[0]
    (seq,) = group.sequences
    values = [TokenLogprobs(-float(i), 1, [], []) for i in range(first, last + 1)]
    draws = [seq.seq_id] if plan.num_samples[0] else []
    return scheduler.update(
        StepResult(
            step_id=plan.step_id,
            seq_ids=int64s(draws),
            token_ids=int32s([9] * len(draws)),
            prompt_logprobs=[PromptLogprobs(seq.seq_id, first, values)],
        ),
        now=2.0,
    )


def sent(outcome: StepOutcome) -> list[tuple[int, float]]:
    """Position and log probability of whatever the router is told."""
    return [
        (first + i, values.logprob)
        for _, first, run in outcome.prompt_logprobs
        for i, values in enumerate(run)
    ]


def test_positions_that_a_lost_worker_reported_are_not_told_again() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=4)
    group = make_request(PROMPT, max_tokens=1, num_prompt_logprobs=0)
    scheduler.admission.add(group)
    assert sent(step(scheduler, group, first=1, last=4)) == [(i, -i) for i in (1, 2, 3, 4)]
    other = make_scheduler(admission=scheduler.admission)
    for moved in scheduler.evacuate():
        other.admission.add(moved)
    assert sent(step(other, group, first=1, last=6)) == [(5, -5.0), (6, -6.0)]
    assert group.is_finished
    other.check()


def test_nobody_is_told_of_a_prompt_whose_request_was_aborted_in_flight() -> None:
    scheduler = make_scheduler()
    group = make_request(PROMPT, max_tokens=1, num_prompt_logprobs=0)
    scheduler.admission.add(group)
    scheduler.schedule(1.0)
    scheduler.abort(group)
    assert sent(answer(scheduler, group, first=1, last=6)) == []
    scheduler.blocks.check([])
