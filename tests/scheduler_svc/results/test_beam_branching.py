"""Beam search on a worker: the same hypotheses whatever happens to the group meanwhile."""

import pytest

from signalbox_contract.errors import Code
from signalbox_scheduler.config import PreemptionMode
from tests.scheduler_svc.beams import PROMPT, STOPS, assert_found, make_search
from tests.scheduler_svc.fake_worker import expected
from tests.scheduler_svc.make import (
    EOS,
    NOT_FINITE,
    Loop,
    assert_all_free,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("stops", [(), STOPS])
def test_a_search_alone_on_a_worker_finds_its_hypotheses(
    depth: int, width: int, early_stopping: bool, stops: tuple[int, ...]
) -> None:
    loop = make_loop(make_scheduler(), depth=depth)
    group = make_search(width=width, n=1, early_stopping=early_stopping, stops=stops)
    loop.scheduler.admission.add(group)
    loop.run()
    assert_found(group)
    assert loop.ended == [group]
    assert_all_free(loop)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_cpu_blocks", [0, 6, 64])
@pytest.mark.parametrize("mode", list(PreemptionMode))
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_a_search_under_preemption_finds_what_it_does_without(
    depth: int, num_cpu_blocks: int, mode: PreemptionMode, prefix_caching: bool
) -> None:
    scheduler = make_scheduler(
        num_gpu_blocks=22, num_cpu_blocks=num_cpu_blocks, mode=mode, prefix_caching=prefix_caching
    )
    loop = make_loop(scheduler, depth=depth)
    groups = [
        make_search([i + 1] * (3 + i), arrival=float(i), length_penalty=0.5 * i, n=1 + i % 4)
        for i in range(6)
    ]
    others = [make_request([40 + i] * 6, max_tokens=14, arrival=i + 0.5) for i in range(6)]
    for group in groups + others:
        scheduler.admission.add(group)
    loop.run()
    assert any(group.num_preemptions for group in groups)
    for group in groups:
        assert_found(group)
    for group in others:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=14)]
    assert len(loop.ended) == len(groups) + len(others)
    assert_all_free(loop)


@pytest.mark.parametrize("max_num_batched_tokens", [1, 2, 3])
def test_steps_too_small_for_all_beams_find_the_same(max_num_batched_tokens: int) -> None:
    loop = make_loop(make_scheduler(max_num_batched_tokens=max_num_batched_tokens))
    groups = [
        make_search([i] * 3, width=5, n=5, max_tokens=20, arrival=float(i)) for i in range(30)
    ]
    for group in groups:
        loop.scheduler.admission.add(group)
    loop.run()
    for group in groups:
        assert_found(group)
    assert_all_free(loop)


@pytest.mark.parametrize("num_steps", range(1, 9))
def test_a_search_whose_worker_is_lost_is_found_on_another(num_steps: int) -> None:
    loop = make_loop(make_scheduler())
    group = make_search(stops=(EOS,))
    loop.scheduler.admission.add(group)
    told = []
    for _ in range(num_steps):
        loop.send()
        outcome = loop.answer()
        told += [] if outcome is None else outcome.token_ids
    loop.send()
    other = make_loop(make_scheduler(admission=loop.scheduler.admission))
    for lost in loop.scheduler.evacuate():
        other.scheduler.admission.add(lost)
    other.run()
    assert_found(group)
    assert outputs(group)[0][: len(told)] == told
    assert_all_free(other)


def test_beams_are_split_off_at_the_worker_not_sent_again() -> None:
    loop = make_loop(make_scheduler())
    group = make_search()
    loop.scheduler.admission.add(group)
    num_forks = 0
    while loop.send():
        plan = loop.sent[-1]
        assert bool(plan.new) is (plan.step_id == 1)
        num_forks += len(plan.forks)
        loop.answer()
    assert num_forks >= 3
    assert_found(group)
    assert_all_free(loop)


def test_other_requests_overlap_while_a_search_waits_for_its_answers() -> None:
    loop = make_loop(make_scheduler())
    search, other = make_search(), make_request([1, 2], max_tokens=12, arrival=1.0)
    loop.scheduler.admission.add(search)
    loop.scheduler.admission.add(other)
    assert loop.send()
    assert loop.send()
    assert [len(plan.seq_ids) for plan in loop.sent] == [2, 1]
    assert not search.is_in_decode_batch
    loop.run()
    assert_found(search)
    assert outputs(other) == [expected([1, 2], num_tokens=12)]
    assert_all_free(loop)


def test_tokens_of_the_best_go_out_as_they_are_settled_and_never_change() -> None:
    loop = make_loop(make_scheduler(max_model_len=64))
    group = make_search(n=3, max_tokens=40, stops=())
    loop.scheduler.admission.add(group)
    told: dict[int, list[int]] = {}
    num_early = 0
    while loop.send():
        outcome = loop.answer()
        assert outcome is not None
        for seq, token_id in zip(outcome.seqs, outcome.token_ids, strict=True):
            told.setdefault(seq.branch, []).append(token_id)
        if not outcome.ended:
            num_early += len(outcome.token_ids)
    assert_found(group)
    assert num_early > 0
    assert told == dict(enumerate(outputs(group)))
    assert group.num_completion_tokens == sum(map(len, told.values()))
    assert loop.scheduler.output_processor.num_generated_tokens == group.num_completion_tokens
    assert_all_free(loop)


def test_least_tokens_hold_for_every_hypothesis() -> None:
    loop = make_loop(make_scheduler())
    group = make_search(min_tokens=6, n=4)
    loop.scheduler.admission.add(group)
    loop.run()
    assert_found(group)
    assert all(len(tokens) > 6 for tokens in outputs(group))
    assert_all_free(loop)


@pytest.mark.parametrize("num_steps", range(4))
def test_an_aborted_search_leaves_nothing(num_steps: int) -> None:
    loop = make_loop(make_scheduler())
    group = make_search()
    loop.scheduler.admission.add(group)
    loop.turn(num_steps)
    loop.send()
    loop.scheduler.abort(group)
    loop.scheduler.check()
    loop.answer()
    assert loop.answer() is None
    assert_all_free(loop)


def test_a_beam_that_fails_ends_the_search_and_its_blocks_are_not_found() -> None:
    loop = make_loop(make_scheduler(), depth=1)
    group = make_search([*PROMPT, 1, 2, 3], stops=())
    loop.scheduler.admission.add(group)
    loop.turn(3)
    loop.send()
    answer = loop.worker.execute(loop.sent.popleft())
    answer.failures[group.sequences[1].seq_id] = NOT_FINITE
    outcome = loop.scheduler.update(answer, loop.now)
    assert outcome.ended == [group]
    assert not outcome.finished
    assert group.failure is not None
    assert (group.failure.code, group.failure.message) == (
        Code.INTERNAL,
        "logits are not finite",
    )
    assert_all_free(loop)


def test_a_worker_that_reports_too_few_log_probabilities_fails_the_search() -> None:
    loop = make_loop(make_scheduler(), depth=1)
    group = make_search(width=2, stops=(EOS,))
    loop.scheduler.admission.add(group)
    loop.send()
    answer = loop.worker.execute(loop.sent.popleft())
    answer.logprobs.clear()
    loop.scheduler.update(answer, loop.now)
    assert group.failure is not None
    assert group.failure.message == "the worker reported 0 of 3 log probabilities"
    assert_all_free(loop)


def test_a_stop_string_does_not_reach_into_a_search() -> None:
    loop = make_loop(make_scheduler())
    group = make_search()
    loop.scheduler.admission.add(group)
    loop.turn(3)
    assert not loop.scheduler.stop_sequence(group, index=0, keep_tokens=1)
    loop.run()
    assert_found(group)
    assert_all_free(loop)


def test_a_search_caches_the_blocks_of_its_hypotheses() -> None:
    """What follows a hypothesis finds its blocks, whatever other beams wrote at these places."""
    loop = make_loop(make_scheduler())
    group = make_search(max_tokens=20, stops=())
    loop.scheduler.admission.add(group)
    loop.run()
    for index, tokens in enumerate(outputs(group)):
        turn = PROMPT + tokens + [1, 2]
        follower = make_request(turn, arrival=1.0 + index)
        loop.scheduler.admission.add(follower)
        loop.run()
        assert follower.num_cached_tokens == 24  # the last token of a hypothesis is not computed
        assert outputs(follower) == [expected(turn, num_tokens=8)]
    assert_all_free(loop)


def assert_places(loop: Loop, *, num_running: int) -> None:
    assert len(loop.scheduler.running) == num_running


def test_the_sequence_budget_counts_beams_to_come() -> None:
    loop = make_loop(make_scheduler(max_num_seqs=6))
    groups = [make_search(arrival=float(i), n=1) for i in range(2)]
    for group in groups:
        loop.scheduler.admission.add(group)
    loop.send()
    assert_places(loop, num_running=1)
    loop.run()
    for group in groups:
        assert_found(group)
    assert_all_free(loop)
