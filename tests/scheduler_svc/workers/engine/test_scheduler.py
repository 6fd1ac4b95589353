"""What a worker is told to do, and that it comes out right whatever is in the way."""

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.updates import FinishReason, RequestFailure
from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    EOS,
    NOT_FINITE,
    assert_all_free,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

PROMPT = [5, 6, 7, 8, 9]


def assert_expected(group: SequenceGroup) -> None:
    assert outputs(group) == [
        expected(group.request.prompt_token_ids, num_tokens=group.max_tokens, branch=branch)
        for branch in range(group.request.num_sequences)
    ]


@pytest.mark.parametrize("depth", [1, 2])
def test_one_request_gets_its_tokens(depth: int) -> None:
    loop = make_loop(make_scheduler(), depth=depth)
    group = make_request(PROMPT, max_tokens=10)
    loop.scheduler.admission.add(group)
    loop.run()
    assert_expected(group)
    assert group.sequences[0].finish_reason is FinishReason.LENGTH
    assert loop.ended == [group]
    assert_all_free(loop)


def test_a_second_step_is_planned_while_the_first_runs() -> None:
    loop = make_loop(make_scheduler())
    loop.scheduler.admission.add(make_request(PROMPT))
    assert loop.send()
    assert loop.send()
    assert [plan.num_new_tokens for plan in loop.sent] == [[5], [1]]
    loop.run()
    assert_all_free(loop)


def test_a_stop_token_ends_the_sequence_and_the_late_token_is_trimmed() -> None:
    stop = expected(PROMPT, num_tokens=4)[3]
    loop = make_loop(make_scheduler())
    group = make_request(PROMPT, max_tokens=50, stop_token_ids=(stop,))
    loop.scheduler.admission.add(group)
    loop.run()
    (seq,) = group.sequences
    assert seq.output_token_ids[-1] == stop == seq.stop_token_id
    assert seq.output_token_ids == expected(PROMPT, num_tokens=len(seq.output_token_ids))
    assert seq.finish_reason is (FinishReason.STOP if stop == EOS else FinishReason.STOP_TOKEN)
    assert_all_free(loop)


def test_min_tokens_keeps_a_stop_token_from_ending_the_sequence() -> None:
    stop = expected(PROMPT, num_tokens=1)[0]
    loop = make_loop(make_scheduler())
    group = make_request(PROMPT, max_tokens=3, stop_token_ids=(stop,), min_tokens=3)
    loop.scheduler.admission.add(group)
    loop.run()
    assert len(group.sequences[0].output_token_ids) == 3
    assert_all_free(loop)


def test_a_long_prompt_is_computed_in_chunks_beside_decodes() -> None:
    loop = make_loop(make_scheduler(max_num_batched_tokens=8), depth=1)
    short, long = make_request([1, 2], max_tokens=20), make_request([3] * 40, arrival=1.0)
    loop.scheduler.admission.add(short)
    loop.send()
    loop.scheduler.admission.add(long)
    loop.answer()
    loop.send()
    assert loop.sent[0].num_new_tokens == [1, 7]
    loop.run()
    assert_expected(short)
    assert_expected(long)
    assert_all_free(loop)


@pytest.mark.parametrize("prompt_len", [1, 3, 4, 5, 8, 9])
def test_branches_share_the_prompt_and_copy_on_write(prompt_len: int) -> None:
    loop = make_loop(make_scheduler())
    group = make_request([7] * prompt_len, n=4, max_tokens=9)
    loop.scheduler.admission.add(group)
    loop.run()
    assert_expected(group)
    assert len({tuple(tokens) for tokens in outputs(group)}) == 4
    assert_all_free(loop)


def test_branches_go_on_when_the_one_that_they_are_split_off_ends_with_its_first_token() -> None:
    loop = make_loop(make_scheduler())
    (last,) = expected(PROMPT, num_tokens=1)
    group = make_request(PROMPT, n=3, max_tokens=9, stop_token_ids=(last,))
    loop.scheduler.admission.add(group)
    loop.run()
    first, *others = outputs(group)
    assert first == [last]
    for branch, tokens in enumerate(others, start=1):
        assert tokens == expected(PROMPT, num_tokens=9, branch=branch)
    assert_all_free(loop)


def test_a_lost_copy_is_noticed() -> None:
    loop = make_loop(make_scheduler(), loses_copies=True)
    group = make_request(PROMPT, n=3, max_tokens=9)
    loop.scheduler.admission.add(group)
    loop.run()
    with pytest.raises(AssertionError):
        assert_expected(group)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_cpu_blocks", [0, 4, 64])
@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("n", [1, 3])
def test_output_under_preemption_is_what_it_is_without(
    depth: int, num_cpu_blocks: int, mode: PreemptionMode, n: int
) -> None:
    scheduler = make_scheduler(num_gpu_blocks=18, num_cpu_blocks=num_cpu_blocks, mode=mode)
    loop = make_loop(scheduler, depth=depth)
    groups = [
        make_request([i + 1] * (3 + i), max_tokens=15, arrival=float(i), n=n) for i in range(8)
    ]
    for group in groups:
        scheduler.admission.add(group)
    loop.run()
    assert scheduler.preemption.num_preemptions > 0
    for group in groups:
        assert_expected(group)
    assert len(loop.ended) == len(groups)
    assert_all_free(loop)


def test_abort_in_flight_gives_blocks_back_when_the_step_is_answered() -> None:
    loop = make_loop(make_scheduler())
    group = make_request(PROMPT, max_tokens=50)
    loop.scheduler.admission.add(group)
    loop.send()
    loop.send()
    loop.scheduler.abort(group)
    loop.scheduler.check()
    assert loop.scheduler.blocks.gpu.num_free < loop.scheduler.blocks.gpu.num_blocks
    loop.answer()
    outcome = loop.answer()
    assert outcome is not None
    assert not outcome.token_ids
    assert_all_free(loop)


def test_stop_sequence_ends_one_branch_and_keeps_what_it_is_told() -> None:
    loop = make_loop(make_scheduler())
    group = make_request(PROMPT, n=2, max_tokens=12)
    loop.scheduler.admission.add(group)
    loop.turn(4)
    assert not loop.scheduler.stop_sequence(group, index=0, keep_tokens=2)
    loop.run()
    first, second = group.sequences
    assert first.finish_reason is FinishReason.STOP_STRING
    assert first.output_token_ids == expected(PROMPT, num_tokens=2)
    assert second.output_token_ids == expected(PROMPT, num_tokens=12, branch=1)
    assert_all_free(loop)


def test_a_sequence_that_fails_ends_alone() -> None:
    loop = make_loop(make_scheduler(), depth=1)
    groups = [make_request(PROMPT, arrival=float(i)) for i in range(2)]
    for group in groups:
        loop.scheduler.admission.add(group)
    loop.send()
    answer = loop.worker.execute(loop.sent.popleft())
    failing = groups[0].sequences[0].seq_id
    answer.failures[failing] = NOT_FINITE
    outcome = loop.scheduler.update(answer, loop.now)
    assert outcome.ended == [groups[0]]
    assert groups[0].failure is not None
    loop.run()
    assert_expected(groups[1])
    assert_all_free(loop)


@pytest.mark.parametrize(
    ("code", "is_found"), [(Code.INTERNAL, False), (Code.FAILED_PRECONDITION, True)]
)
def test_blocks_are_found_of_a_sequence_that_is_refused_and_not_of_one_that_went_wrong(
    code: Code, is_found: bool
) -> None:
    """It is refused for what its request asks, such as to suppress every token."""
    loop = make_loop(make_scheduler(), depth=1)
    group = make_request(PROMPT)
    loop.scheduler.admission.add(group)
    for _ in range(2):
        loop.send()
        answer = loop.worker.execute(loop.sent.popleft())
        if group.sequences[0].output_token_ids:
            answer.failures[group.sequences[0].seq_id] = RequestFailure(code, "")
        loop.scheduler.update(answer, loop.now)
    assert group.failure is not None
    twin = make_request(PROMPT).sequences[0]
    assert bool(loop.scheduler.blocks.find_prefix(twin)) is is_found
    loop.run()
    assert_all_free(loop)


def test_the_sequence_budget_counts_branches_to_come() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=4))
    groups = [make_request([i + 1] * 4, n=3, arrival=float(i)) for i in range(3)]
    for group in groups:
        loop.scheduler.admission.add(group)
    loop.send()
    assert [group.sequences[0].status for group in groups] == [
        SequenceStatus.RUNNING,
        SequenceStatus.WAITING,
        SequenceStatus.WAITING,
    ]
    loop.run()
    for group in groups:
        assert_expected(group)
    assert_all_free(loop)


def test_groups_of_a_lost_worker_go_on_elsewhere() -> None:
    loop = make_loop(make_scheduler())
    groups = [make_request([i + 1] * 6, n=2, max_tokens=10, arrival=float(i)) for i in range(3)]
    for group in groups:
        loop.scheduler.admission.add(group)
    loop.turn(5)
    loop.send()
    other = make_loop(make_scheduler(admission=loop.scheduler.admission))
    for group in loop.scheduler.evacuate():
        other.scheduler.admission.add(group)
    other.run()
    for group in groups:
        assert_expected(group)
    assert_all_free(other)


def test_the_window_bounds_a_sequence() -> None:
    loop = make_loop(make_scheduler(max_model_len=12))
    group = make_request([1] * 9, max_tokens=100)
    loop.scheduler.admission.add(group)
    loop.run()
    assert outputs(group) == [expected([1] * 9, num_tokens=3)]
    assert_all_free(loop)


def test_a_branch_that_ended_before_the_worker_was_lost_holds_nothing_on_the_next() -> None:
    loop = make_loop(make_scheduler())
    group = make_request(PROMPT, n=2, max_tokens=10)
    loop.scheduler.admission.add(group)
    loop.turn(3)
    loop.send()  # the branch that is stopped is in flight when the worker goes
    loop.scheduler.stop_sequence(group, index=0, keep_tokens=1)
    other = make_loop(make_scheduler(admission=loop.scheduler.admission))
    for lost in loop.scheduler.evacuate():
        other.scheduler.admission.add(lost)
    other.run()
    assert group.sequences[1].output_token_ids == expected(PROMPT, num_tokens=10, branch=1)
    assert_all_free(other)
