"""A worker answers with as many tokens and log probabilities as were asked for, and no more."""

import math
from typing import Any

import numpy as np
import pytest

from contract.columns import int32s, int64s
from contract.errors import Code
from contract.logprobs import PromptLogprobs, TokenLogprobs
from contract.pooling import Vector
from contract.sampling_params import SamplingParams
from contract.sections.store_moves import MoveResult
from contract.step_result import StepResult
from contract.updates import FinishReason, RequestFailure
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
        ([1], [math.nan], "a log probability that is not finite"),
        ([1], [math.inf], "a log probability that is not finite"),
        ([1], [-math.inf], "a log probability that is not finite"),
    ],
)
def test_tokens_beside_a_prompts_and_a_drawn_one_are_checked_alike(
    top_token_ids: list[int], top_logprobs: list[float], fault: str | None
) -> None:
    plan = make_plan(SamplingParams(num_logprobs=1, num_prompt_logprobs=1))
    (seq,) = plan.seqs
    good, entry = tops(1), TokenLogprobs(-1.0, 1, top_token_ids, top_logprobs)
    for drawn, of_prompt in ((entry, good), (good, entry)):
        run = PromptLogprobs(seq.seq_id, 1, [of_prompt])
        answer = make_result(seq, logprobs={0: drawn}, prompt_logprobs=[run])
        assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == fault


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_the_log_probability_of_a_token_is_finite(value: float) -> None:
    plan = make_plan(SamplingParams(num_logprobs=0, num_prompt_logprobs=0))
    (seq,) = plan.seqs
    good, bad = tops(0), TokenLogprobs(value, 1, [], [])
    for drawn, of_prompt in ((bad, good), (good, bad)):
        run = PromptLogprobs(seq.seq_id, 1, [of_prompt])
        answer = make_result(seq, logprobs={0: drawn}, prompt_logprobs=[run])
        fault = find_fault(plan, answer, vocab_size=VOCAB_SIZE)
        assert fault == "a log probability that is not finite"


def make_prompt_plan(*, num_computed: int, num_new: int, num_known: int) -> StepPlan:
    """Returns a step of a part of a prompt of eight tokens, of which some are known."""
    plan = make_plan(SamplingParams(num_prompt_logprobs=0))
    (seq,) = plan.seqs
    seq.group.num_prompt_tokens, seq.group.num_known_prompt_logprobs = 8, num_known
    seq.num_computed_tokens, plan.num_new_tokens = num_computed, [num_new]
    return plan


@pytest.mark.parametrize(
    ("num_computed", "num_new", "num_known", "reported", "fault"),
    [
        (0, 8, 0, range(1, 8), None),
        (0, 8, 0, range(1, 7), "6 of 7 log probabilities of a prompt"),
        (0, 8, 0, range(0), "0 of 7 log probabilities of a prompt"),
        (0, 4, 0, range(1, 5), None),
        (0, 4, 0, range(1, 4), "3 of 4 log probabilities of a prompt"),
        (4, 3, 4, range(5, 8), None),
        (4, 3, 4, range(0), "4 of 7 log probabilities of a prompt"),
        (7, 1, 7, range(0), None),
        (0, 4, 6, range(0), None),  # it is computed again, as far as was reported
        (0, 8, 6, range(0), "6 of 7 log probabilities of a prompt"),
    ],
)
def test_each_token_of_a_prompt_has_the_log_probability_that_was_asked_for(
    num_computed: int, num_new: int, num_known: int, reported: range, fault: str | None
) -> None:
    plan = make_prompt_plan(num_computed=num_computed, num_new=num_new, num_known=num_known)
    (seq,) = plan.seqs
    runs = [PromptLogprobs(seq.seq_id, reported.start, [tops(0)] * len(reported))]
    answer = make_result(seq, prompt_logprobs=runs if reported else [])
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == fault


def test_a_sequence_that_failed_or_ended_reports_no_prompt() -> None:
    plan = make_prompt_plan(num_computed=0, num_new=8, num_known=0)
    (seq,) = plan.seqs
    failed = StepResult(step_id=1, failures={seq.seq_id: RequestFailure(Code.INTERNAL, "no")})
    assert find_fault(plan, failed, vocab_size=VOCAB_SIZE) is None
    seq.finish(FinishReason.STOP)
    assert find_fault(plan, make_result(seq), vocab_size=VOCAB_SIZE) is None


VECTOR = np.zeros(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("vectors", "fault"),
    [
        ({1: VECTOR}, None),
        ({}, "no vector for sequence 1"),
        ({1: VECTOR, 2: VECTOR}, "an unwanted vector for sequence 2"),
        ({1: VECTOR[:2]}, "2 of 3 elements for sequence 1"),
        ({1: VECTOR + np.nan}, "a vector that is not finite for sequence 1"),
    ],
)
def test_a_prompt_that_is_pooled_has_one_vector_of_the_models_length(
    vectors: dict[int, Vector], fault: str | None
) -> None:
    plan = make_check_plan(pools=True)
    answer = StepResult(step_id=1, pooled=vectors)
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE, num_outputs=3) == fault


def test_a_prompt_that_is_pooled_has_no_token_and_a_failed_one_no_vector() -> None:
    plan = make_check_plan(pools=True)
    (seq,) = plan.seqs
    answer = make_result(seq, pooled={1: VECTOR})
    fault = find_fault(plan, answer, vocab_size=VOCAB_SIZE, num_outputs=3)
    assert fault == "1 tokens of a worker that pools"
    failed = StepResult(step_id=1, failures={1: RequestFailure(Code.INTERNAL, "no")})
    assert find_fault(plan, failed, vocab_size=VOCAB_SIZE, num_outputs=3) is None


def test_a_prompt_that_goes_on_has_no_vector_yet() -> None:
    plan = make_check_plan(pools=True)
    plan.num_samples = [0]
    answer = StepResult(step_id=1)
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE, num_outputs=3) is None
    answer.pooled = {1: VECTOR}
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE, num_outputs=3) is not None


def test_a_worker_that_generates_has_no_vectors() -> None:
    plan = make_check_plan()
    (seq,) = plan.seqs
    answer = make_result(seq, pooled={1: VECTOR})
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) is not None


@pytest.mark.parametrize(
    ("moves", "fault"),
    [
        ((MoveResult(1, 2, 1 << 40, 3600 * 10**9, "x" * 500),), None),
        ((MoveResult(1, 2, 1 << 64),), "a move of 18446744073709551616 bytes"),
        ((MoveResult(1, 2, 3, 3601 * 10**9),), "a move of 3601 s"),
        ((MoveResult(1, 2, failed="x" * 501),), "a reason of 501 characters"),
        ((MoveResult(1, 2),) * 5000, "the ends of 5000 moves"),
    ],
)
def test_the_end_of_a_move_reports_what_sums_can_hold(
    moves: tuple[MoveResult, ...], fault: str | None
) -> None:
    plan = make_plan(SamplingParams())
    (seq,) = plan.seqs
    answer = make_result(seq, moves=moves)
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == fault
