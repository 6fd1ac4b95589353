"""A worker answers with as many tokens and log probabilities as were asked for, and no more."""

import itertools
import math
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.errors import Code
from signalbox_contract.logprobs import PromptLogprobs, TokenLogprobs
from signalbox_contract.pooling import Vector
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.drafts import DraftCounts, DraftSource
from signalbox_contract.sections.store_moves import MoveResult
from signalbox_contract.step_result import StepResult
from signalbox_contract.updates import FinishReason, RequestFailure
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence
from signalbox_scheduler.results.result_validation import find_fault
from signalbox_scheduler.workers.engine.probe_step import make_check_plan

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


@pytest.mark.parametrize(
    ("most", "drafts", "num_tokens", "fault"),
    [
        (0, None, 1, None),
        (0, None, 2, "2 tokens of sequence 1 with 0 drafts"),
        (0, [(1, 1)], 2, "1 drafts of sequence 1, which may have 0"),
        (3, None, 1, None),
        (3, None, 2, "2 tokens of sequence 1 with 0 drafts"),
        (3, [(1, 3)], 1, None),
        (3, [(1, 3)], 4, None),
        (3, [(1, 2)], 4, "4 tokens of sequence 1 with 2 drafts"),
        (3, [(1, 4)], 5, "4 drafts of sequence 1, which may have 3"),
        (3, [(2, 1)], 1, "1 drafts of sequence 2, which may have 0"),
        (3, [(1, 1), (1, 1)], 1, "drafts of 2 sequences, of which 1 differ"),
    ],
)
def test_a_run_has_as_many_tokens_as_drafts_that_were_allowed_and_one(
    most: int, drafts: list[tuple[int, int]] | None, num_tokens: int, fault: str | None
) -> None:
    plan = make_plan(SamplingParams(num_logprobs=0))
    plan.num_drafts = {0: most} if most else {}
    answer = make_result(plan.seqs[0], logprobs={row: tops(0) for row in range(num_tokens)})
    answer.token_ids = int32s([1] * num_tokens)
    answer.num_tokens = int32s([num_tokens])
    if drafts is not None:
        seq_ids, counts = map(list, zip(*drafts, strict=True))
        sources = int32s([int(DraftSource.TEXT)] * len(counts))
        answer.drafts = DraftCounts(int64s(seq_ids), int32s(counts), sources)
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == fault
    if fault is None:
        del answer.logprobs[num_tokens - 1]
        missing = f"no log probability of row {num_tokens - 1}"
        assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == missing


def test_drafts_come_from_a_source_that_is_known() -> None:
    plan = make_plan(SamplingParams())
    plan.num_drafts = {0: 1}
    drafts = DraftCounts(int64s([1]), int32s([1]), int32s([99]))
    answer = make_result(plan.seqs[0], drafts=drafts)
    fault = find_fault(plan, answer, vocab_size=VOCAB_SIZE)
    assert fault == "drafts of source 99, which is none"


def test_drafts_are_offered_for_sequences_of_the_step() -> None:
    plan = make_plan(SamplingParams())
    answer = make_result(plan.seqs[0], draft_offers=int64s([1]))
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) is None
    answer.draft_offers = int64s([1, 7])
    fault = find_fault(plan, answer, vocab_size=VOCAB_SIZE)
    assert fault == "drafts for sequence 7, which is not in the step"


def test_a_column_of_runs_has_all_tokens() -> None:
    plan = make_plan(SamplingParams())
    answer = make_result(plan.seqs[0], num_tokens=int32s([1]))
    answer.token_ids = int32s([1, 2])
    assert find_fault(plan, answer, vocab_size=VOCAB_SIZE) == "2 of 1 tokens"


RUNS = st.tuples(st.integers(1, 8), st.integers(0, 2))
"""Sequence and branch; sequence 8 is in no step."""


@settings(max_examples=400)
@given(
    num_samples=st.lists(st.sampled_from([0, 1, 1, 1, 2]), min_size=1, max_size=7),
    own_branches=st.lists(st.sampled_from([0, 0, 1]), min_size=7, max_size=7),
    num_decodes=st.integers(0, 7),
    failing=st.sampled_from([None, 1, 2]),
    has_runs_of_failed=st.booleans(),
    other_branch=st.sampled_from([None, None, 0, 1, 2, 3]),
    extra=st.lists(RUNS, max_size=1),
    left_out=st.sets(st.integers(0, 7), max_size=1),
    data=st.data(),
)
def test_a_result_has_each_draw_once_in_any_order_and_nothing_else(
    num_samples: list[int],
    own_branches: list[int],
    num_decodes: int,
    failing: int | None,
    has_runs_of_failed: bool,
    other_branch: int | None,
    extra: list[tuple[int, int]],
    left_out: set[int],
    data: st.DataObject,
) -> None:
    """However many of the first sequences are in the decode batch."""
    group = make_check_plan().seqs[0].group
    ids = list(range(1, len(num_samples) + 1))
    seqs = [
        Sequence(seq_id=seq_id, branch=branch, group=group)
        for seq_id, branch in zip(ids, own_branches, strict=False)
    ]
    leading = [*itertools.takewhile(lambda number: number == 1, num_samples)]
    plan = StepPlan(
        step_id=1,
        token_budget=0,
        seqs=seqs,
        seq_ids=ids,
        num_new_tokens=[1] * len(ids),
        num_samples=num_samples,
        decode_ids=int64s(ids[: min(num_decodes, len(leading))]),
    )
    failed = {failing} & set(ids)
    draws = [
        (seq.seq_id, seq.branch + draw)
        for seq, number in zip(seqs, num_samples, strict=True)
        for draw in range(number)
    ]
    wanted = [run for run in draws if run[0] not in failed]
    given_runs = draws if has_runs_of_failed else wanted
    runs = [run for i, run in enumerate(given_runs) if i not in left_out] + extra
    if runs and other_branch is not None:
        runs[other_branch % len(runs)] = (runs[other_branch % len(runs)][0], other_branch)
    if data.draw(st.booleans()):
        runs = data.draw(st.permutations(runs))
    answer = StepResult(
        step_id=1,
        seq_ids=int64s([seq_id for seq_id, _ in runs]),
        branches=int32s([branch for _, branch in runs]),
        token_ids=int32s([1] * len(runs)),
        failures={seq_id: RequestFailure(Code.INTERNAL, "no") for seq_id in failed},
    )
    own = {seq.seq_id: seq.branch for seq in seqs}
    if all(own.get(seq_id) == branch for seq_id, branch in runs):
        answer.branches = data.draw(st.sampled_from([None, answer.branches]))
    fault = find_fault(plan, answer, vocab_size=VOCAB_SIZE)
    assert (fault is None) == (sorted(runs) == sorted(wanted))


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


def test_a_prompt_whose_tokens_are_pooled_has_a_vector_for_each() -> None:
    plan = make_check_plan(pools=True, is_per_token=True)
    (seq,) = plan.seqs
    seq.group.num_prompt_tokens = num_tokens = 4
    lengths: dict[str, int] = {"vocab_size": VOCAB_SIZE, "num_outputs": 3, "num_token_outputs": 2}
    vectors = np.ones(2 * num_tokens, np.float32)
    assert find_fault(plan, StepResult(step_id=1, pooled={1: vectors}), **lengths) is None
    fault = find_fault(plan, StepResult(step_id=1, pooled={1: vectors[1:]}), **lengths)
    assert fault == f"{2 * num_tokens - 1} of {2 * num_tokens} elements for sequence 1"


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
