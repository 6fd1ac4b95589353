"""Prompts that are pooled: chunks of causal models, whole prompts of others, and their ends."""

from collections.abc import Iterable

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.pooling import PoolingModel
from signalbox_contract.step_result import StepResult
from signalbox_contract.updates import FinishReason
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind
from tests.scheduler_svc.make import Loop, assert_all_free
from tests.scheduler_svc.pooling import (
    BOTH_WAYS,
    LAST,
    MEAN,
    MODELS,
    has_its_vector,
    make_pooling_loop,
    make_pooling_request,
)


def submit(loop: Loop, *lengths: int, start: float = 0.0) -> list[SequenceGroup]:
    groups = [
        make_pooling_request([i + 1] * length, arrival=start + i)
        for i, length in enumerate(lengths)
    ]
    for group in groups:
        loop.scheduler.admission.add(group)
    return groups


def steps(loop: Loop) -> list[list[int]]:
    """Runs to the end; returns the numbers of tokens of each step."""
    found: list[list[int]] = []
    while loop.send() or loop.sent:
        if loop.sent:
            found.append(loop.sent[-1].num_new_tokens)
            loop.answer()
        loop.scheduler.check()
    return found


def assert_pooled(loop: Loop, groups: Iterable[SequenceGroup]) -> None:
    for group in groups:
        (seq,) = group.sequences
        assert (group.failure, seq.finish_reason) == (None, FinishReason.STOP)
        assert has_its_vector(group, loop)
        assert group.num_completion_tokens == 0
        assert group.times.first_token is None
        kinds = [event.kind for event in group.timeline.events]
        assert kinds.count(EventKind.POOLED) == 1
        assert EventKind.FIRST_TOKEN not in kinds
    assert not loop.scheduler.preemption.num_preemptions
    assert_all_free(loop)


@pytest.mark.parametrize("model", [LAST, MEAN], ids=["last", "mean"])
def test_prompts_of_causal_models_are_chunked(model: PoolingModel) -> None:
    loop = make_pooling_loop(model, depth=1, max_num_batched_tokens=8, max_num_seqs=8)
    groups = submit(loop, 20, 3, 1)
    assert steps(loop) == [[8], [8], [4, 3, 1]]
    assert_pooled(loop, groups)


def test_prompts_that_must_be_whole_fill_steps_up_to_the_budget() -> None:
    loop = make_pooling_loop(BOTH_WAYS, depth=1, max_num_batched_tokens=12, max_num_seqs=8)
    groups = submit(loop, 5, 6, 4, 8, 1)
    assert steps(loop) == [[5, 6], [4, 8], [1]]
    assert_pooled(loop, groups)


def test_a_prompt_longer_than_a_step_has_one_of_its_own() -> None:
    loop = make_pooling_loop(BOTH_WAYS, depth=1, max_num_batched_tokens=12, max_num_seqs=8)
    groups = submit(loop, 3, 20, 4, 13, 5)
    assert steps(loop) == [[3], [20], [4], [13], [5]]
    assert_pooled(loop, groups)


def test_no_stream_of_short_prompts_keeps_a_long_one_waiting() -> None:
    loop = make_pooling_loop(BOTH_WAYS, max_num_batched_tokens=12, max_num_seqs=8)
    long, *others = submit(loop, 20, 3)
    loop.scheduler.admission.remove(long)
    for turn in range(20):
        others += submit(loop, 3, 3, 3, 3, start=2.0 + 4 * turn)
        if turn == 3:
            loop.scheduler.admission.add(long)
        loop.turn()
        if long in loop.pooled:
            assert turn <= 8
            break
    loop.run()
    assert_pooled(loop, [long, *others])


def test_a_step_that_memory_limits_still_takes_a_whole_prompt() -> None:
    loop = make_pooling_loop(BOTH_WAYS, depth=1, max_num_batched_tokens=12, max_num_seqs=2)
    (first,) = submit(loop, 3)
    loop.send()
    plan = loop.sent.popleft()
    result = loop.worker.execute(plan)
    result.max_num_batched_tokens = 5
    outcome = loop.scheduler.update(result, loop.now)
    assert [group for group, _ in outcome.pooled] == [first]
    groups = submit(loop, 4, 11, 2, start=1.0)
    assert steps(loop) == [[4], [11], [2]]
    assert_pooled(loop, groups)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_prompt_may_fill_the_window_and_the_pool(model: PoolingModel) -> None:
    loop = make_pooling_loop(
        model, max_num_batched_tokens=12, max_num_seqs=8, num_gpu_blocks=8, max_model_len=32
    )
    groups = submit(loop, 32, 1, 32)
    assert all(map(loop.scheduler.can_ever_take, groups))
    loop.run()
    assert_pooled(loop, groups)
    (longer,) = submit(loop, 33, start=9.0)
    assert not loop.scheduler.can_ever_take(longer)


@pytest.mark.parametrize(
    ("model", "num_cached"), [(LAST, 12), (MEAN, 0), (BOTH_WAYS, 0)], ids=MODELS
)
def test_a_vector_of_the_last_token_alone_may_begin_with_cached_blocks(
    model: PoolingModel, num_cached: int
) -> None:
    loop = make_pooling_loop(model)
    groups = []
    for arrival in range(2):
        group = make_pooling_request([7] * 16, arrival=float(arrival))  # its last block is whole
        loop.scheduler.admission.add(group)
        loop.run()
        groups.append(group)
    assert [group.num_cached_tokens for group in groups] == [0, num_cached]
    assert_pooled(loop, groups)


def make_result(plan: StepPlan) -> StepResult:
    return StepResult(step_id=plan.step_id)


def test_a_prompt_that_ends_without_a_vector_fails() -> None:
    loop = make_pooling_loop(LAST)
    (group,) = submit(loop, 5)
    plan = loop.scheduler.schedule(1.0)
    assert plan is not None
    outcome = loop.scheduler.update(make_result(plan), 2.0)
    assert outcome.ended == [group]
    assert group.failure is not None
    assert group.failure.code is Code.INTERNAL
    assert not outcome.pooled
    loop.scheduler.schedule(3.0)
    assert_all_free(loop)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_an_aborted_prompt_gives_its_blocks_back_when_its_step_is_answered(
    model: PoolingModel,
) -> None:
    loop = make_pooling_loop(model, max_num_batched_tokens=8, max_num_seqs=8)
    aborted, other = submit(loop, 20, 5)
    loop.send()
    loop.scheduler.abort(aborted)
    assert loop.scheduler.blocks.gpu.num_free < loop.scheduler.blocks.gpu.num_blocks
    loop.run()
    assert aborted not in loop.pooled
    assert_pooled(loop, [other])


def test_a_step_says_how_its_new_sequences_are_pooled() -> None:
    loop = make_pooling_loop(LAST, depth=1, max_num_batched_tokens=8, max_num_seqs=8)
    groups = submit(loop, 6, 6)
    first = loop.scheduler.schedule(1.0)
    assert first is not None
    pooling = first.to_step(epoch=1).pooling
    assert pooling == {group.sequences[0].seq_id: group.request.pooling for group in groups}
    second = loop.scheduler.schedule(2.0)
    assert second is not None
    assert second.to_step(epoch=1).pooling is None
