"""A worker answers with as many tokens and log probabilities as were asked for, and no more."""

from typing import Any

import pytest

from contract.columns import int32s, int64s
from contract.logprobs import PromptLogprobs, TokenLogprobs
from contract.sampling_params import SamplingParams
from contract.step_result import StepResult
from scheduler_svc.planning.plan import StepPlan
from scheduler_svc.requests.sequence import Sequence
from scheduler_svc.results.result_validation import find_fault
from scheduler_svc.workers.probe_step import make_check_plan

VOCAB_SIZE = 512


def make_plan(params: SamplingParams) -> StepPlan:
    """Returns a step of a sequence with a prompt of two tokens."""
    plan = make_check_plan()
    (seq,) = plan.seqs
    seq.group.params = params
    seq.group.num_prompt_tokens = 2
    return plan


def make_result(seq: Sequence, **reported: Any) -> StepResult:
    return StepResult(step_id=1, seq_ids=int64s([seq.seq_id]), token_ids=int32s([1]), **reported)


def tops(number: int) -> TokenLogprobs:
    return TokenLogprobs(-1.0, 1, list(range(number)), [-1.0] * number)


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        (SamplingParams(num_logprobs=0), 0),
        (SamplingParams(num_logprobs=3), 3),
        (SamplingParams(num_logprobs=0, logprob_token_ids=(5, 6)), 2),
    ],
)
def test_a_row_names_as_many_tokens_as_were_asked_for(params: SamplingParams, allowed: int) -> None:
    plan = make_plan(params)
    (seq,) = plan.seqs

    def fault(number: int) -> str | None:
        answer = make_result(seq, logprobs={0: tops(number)})
        return find_fault(plan, answer, vocab_size=VOCAB_SIZE)

    assert fault(allowed) is None
    assert fault(allowed + 1) == f"{allowed + 1} log probabilities of row 0"


def test_a_run_has_one_token_since_no_step_asks_for_drafts() -> None:
    plan = make_plan(SamplingParams())
    seq_ids = int64s([seq.seq_id for seq in plan.seqs])

    def fault(*token_ids: int) -> str | None:
        lengths = int32s([len(token_ids)])
        answer = StepResult(
            step_id=1, seq_ids=seq_ids, num_tokens=lengths, token_ids=int32s(list(token_ids))
        )
        return find_fault(plan, answer, vocab_size=VOCAB_SIZE)

    assert fault(1) is None
    assert fault(1, 2) == "2 of 1 tokens"


@pytest.mark.parametrize("asked", [None, 0, 3])
def test_a_prompts_token_names_as_many_tokens_as_were_asked_for(asked: int | None) -> None:
    plan = make_plan(SamplingParams(num_prompt_logprobs=asked))
    (seq,) = plan.seqs

    def fault(number: int) -> str | None:
        run = PromptLogprobs(seq.seq_id, 1, [tops(number)])
        answer = make_result(seq, prompt_logprobs=[run])
        return find_fault(plan, answer, vocab_size=VOCAB_SIZE)

    allowed = asked or 0
    assert fault(allowed) is None
    assert fault(allowed + 1) == f"{allowed + 1} log probabilities of a prompt's token"


@pytest.mark.parametrize(
    ("top_token_ids", "top_logprobs", "fault"),
    [
        ([VOCAB_SIZE - 1], [-1.0], None),
        ([VOCAB_SIZE], [-1.0], "token 512 of a vocabulary of 512"),
        ([1], [-1.0, -1.0], "1 tokens with 2 log probabilities"),
    ],
)
def test_tokens_beside_a_prompts_and_a_drawn_one_are_checked_alike(
    top_token_ids: list[int], top_logprobs: list[float], fault: str | None
) -> None:
    plan = make_plan(SamplingParams(num_logprobs=1, num_prompt_logprobs=1))
    (seq,) = plan.seqs
    good, entry = tops(1), TokenLogprobs(-1.0, 1, top_token_ids, top_logprobs)
    drawn = make_result(seq, logprobs={0: entry})
    run = PromptLogprobs(seq.seq_id, 1, [entry])
    of_prompt = make_result(seq, logprobs={0: good}, prompt_logprobs=[run])
    for answer in (drawn, of_prompt):
        assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == fault
