"""Drafts change no token: a step adds as many as the worker keeps, up to where a sequence ends."""

from collections.abc import Iterable
from typing import Any

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.sections.drafts import DraftSource
from signalbox_contract.step_result import MaskTimes, StepTimings
from signalbox_contract.updates import FinishReason
from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.planning import plan as step_plan
from signalbox_scheduler.planning.connector import nothing_waits
from signalbox_scheduler.planning.mask_turns import USUAL_S
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup
from signalbox_scheduler.results.result_validation import find_fault
from signalbox_scheduler.results.step_outcome import finished_request, router_updates
from tests.scheduler_svc.beams import assert_found
from tests.scheduler_svc.fake_drafts import SOURCES
from tests.scheduler_svc.fake_worker import VOCAB_SIZE, expected
from tests.scheduler_svc.make import (
    EOS,
    NOT_FINITE,
    Loop,
    assert_all_free,
    content_of,
    make_loop,
    make_request,
    make_scheduler,
    outputs,
)

PROMPT = [1, 2, 3, 4, 5]
KINDS = ["g", "b", "m", "o", "n", "gmobn", "n" * 12 + "gb"]
"""The last one has none for so long that sequences wait for offers."""
WINDOWS = (FULL_GROUP, CacheGroup(kind="window", window=5))


def make_drafting(*, most: int = 5, kinds: str = "gmobn", depth: int = 2, **options: Any) -> Loop:
    scheduler = make_scheduler(max_draft_tokens=most, **options)
    return make_loop(scheduler, depth=depth, draft_kinds=kinds)


def submit(loop: Loop, prompt: list[int], **fields: Any) -> SequenceGroup:
    group = make_request(prompt, arrival=loop.now, **fields)
    loop.scheduler.admission.add(group)
    return group


def run(loop: Loop, groups: list[SequenceGroup]) -> int:
    """Runs all to their ends, and checks each plan and answer; returns the number of steps."""
    num_steps, content = 0, dict[bytes, Any]()
    for group in groups:
        content |= content_of(
            group, block_size=loop.worker.block_size, groups=loop.scheduler.blocks.groups
        )
    while not all(group.is_finished for group in groups):
        while loop.send():
            num_steps += 1
            for seq in loop.scheduler.in_flight[-1].seqs:
                assert loop.scheduler.counters(seq).num_computed_tokens < seq.group.max_length
                assert seq.num_planned_tokens < seq.group.max_length
            loop.scheduler.check()
        plan, sent = loop.scheduler.in_flight[0], loop.sent.popleft()
        result = loop.worker.execute(sent)
        assert find_fault(plan, result, vocab_size=VOCAB_SIZE) is None
        loop.scheduler.update(result, loop.now)
        loop.scheduler.check()
        loop.check_content(content)
    loop.run()
    assert_all_free(loop)
    return num_steps


def assert_outputs(group: SequenceGroup) -> None:
    prompt, num_tokens = group.request.prompt_token_ids, group.max_tokens
    for branch, output in enumerate(outputs(group)):
        assert output == expected(prompt, num_tokens=num_tokens, branch=branch)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("most", [1, 5, 64])
def test_output_is_what_it_is_without_drafts(kinds: str, depth: int, most: int) -> None:
    loop = make_drafting(most=most, kinds=kinds, depth=depth)
    groups = [submit(loop, [*PROMPT, i], max_tokens=11 + i, n=1 + i % 2) for i in range(3)]
    num_steps = run(loop, groups)
    for group in groups:
        assert_outputs(group)
    if kinds == "g" and most > 1:
        assert num_steps < 11


def test_two_steps_in_flight_each_have_drafts() -> None:
    loop = make_drafting(most=3, kinds="m")
    group = submit(loop, PROMPT, max_tokens=40)
    loop.turn(2)
    while len(loop.sent) < 2:
        loop.send()
    (seq,) = group.sequences
    assert [plan.num_drafts for plan in loop.scheduler.in_flight] == [{0: 3}, {0: 3}]
    num_tokens, num_computed = seq.num_tokens, seq.num_computed_tokens
    assert (seq.num_inflight_tokens, seq.num_inflight_samples) == (8, 8)
    loop.answer()
    assert seq.num_tokens == num_tokens + 2  # a draft and the token behind it
    assert (seq.num_computed_tokens, seq.num_inflight_tokens) == (num_computed + 2, 4)
    run(loop, [group])
    assert_outputs(group)


@pytest.mark.parametrize("groups", [(FULL_GROUP,), WINDOWS])
def test_a_plan_takes_all_blocks_of_a_run_at_once(
    groups: tuple[CacheGroup, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make_drafting(most=5, kinds="gb", groups=groups)
    state, taken = loop.scheduler.state.worker_state, list[tuple[int, int]]()
    append_slots = state.append_slots

    def count(plan: step_plan.StepPlan, seq: Sequence, num_new_tokens: int) -> None:
        taken.append((plan.step_id, seq.seq_id))
        append_slots(plan, seq, num_new_tokens)

    monkeypatch.setattr(state, "append_slots", count)
    run(loop, [submit(loop, [*PROMPT, i], max_tokens=20, n=1 + i) for i in range(2)])
    assert taken and len(taken) == len(set(taken))


def test_a_step_names_the_limits_and_the_prediction_once() -> None:
    loop = make_drafting(most=3, kinds="g")
    submit(loop, PROMPT, max_tokens=9, prediction=(7, 8))
    loop.send()
    first = loop.scheduler.in_flight[-1].to_step(epoch=1)
    assert (first.draft_limits, first.new[0].prediction) == (None, (7, 8))
    loop.answer()
    loop.send()
    step = loop.scheduler.in_flight[-1].to_step(epoch=1)
    assert step.draft_limits is not None
    assert step.draft_limits.seq_ids == step.running_seq_ids
    assert step.draft_limits.most.tolist() == [3]
    assert step.running_num_new_tokens.tolist() == [1]


def test_a_step_names_the_owner_of_each_new_sequence_that_may_have_drafts() -> None:
    loop = make_drafting(most=3)
    fields: list[dict[str, Any]] = [
        {"tenant": "a"},
        {"tenant": "a", "n": 2},
        {"tenant": "a", "cache_salt": "s"},
        {"tenant": "b"},
        {"tenant": "a", "no_speculation": True},
    ]
    groups = [submit(loop, [*PROMPT, i], max_tokens=2, **one) for i, one in enumerate(fields)]
    owners = dict[int, bytes]()
    while len(owners) < len(groups):
        loop.send()
        step = loop.scheduler.in_flight[-1].to_step(epoch=5)
        owners |= {new.token_ids[-1]: new.owner for new in step.new}
        loop.answer()
    same, again, salted, other, plain = (owners[i] for i in range(len(fields)))
    assert same == again
    assert len({same, salted, other, plain}) == 4
    assert not plain
    run(loop, groups)
    loop.scheduler.clear_prefix_cache(None, nothing_waits)
    group = submit(loop, [*PROMPT, 9], max_tokens=2, tenant="a")
    loop.send()
    (new,) = loop.scheduler.in_flight[-1].to_step(epoch=5).new
    assert new.owner not in owners.values(), "else drafts came from outputs before the clear"
    loop.answer()
    run(loop, [group])


def test_the_predictions_of_a_step_fit_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_plan, "MAX_PREDICTION_TOKENS", 6)
    loop = make_drafting(most=3, kinds="g")
    lengths = (4, 3, 2)
    groups = [
        submit(loop, [*PROMPT, i], max_tokens=9, n=2, prediction=(7,) * length)
        for i, length in enumerate(lengths)
    ]
    loop.send()
    step = loop.scheduler.in_flight[-1].to_step(epoch=1)
    assert [len(new.prediction) for new in step.new] == [4, 0, 2]
    run(loop, groups)
    for group in groups:
        assert_outputs(group)


@pytest.mark.parametrize("kinds", ["g", "m"])
@pytest.mark.parametrize("index", range(2, 9))
def test_what_follows_a_stop_token_within_a_run_is_dropped(kinds: str, index: int) -> None:
    right = expected(PROMPT, num_tokens=12)
    loop = make_drafting(most=6, kinds=kinds)
    stops = (right[0], right[index])  # the first comes before min_tokens
    group = submit(loop, PROMPT, max_tokens=12, stop_token_ids=stops, min_tokens=2)
    run(loop, [group])
    first = next(i for i, one in enumerate(right) if one in stops and i >= 2)
    (seq,) = group.sequences
    assert seq.output_token_ids == right[: first + 1]
    assert seq.stop_token_id == right[first]
    wanted = FinishReason.STOP if right[first] == EOS else FinishReason.STOP_TOKEN
    assert seq.finish_reason is wanted


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_no_run_goes_beyond_the_last_token(max_tokens: int) -> None:
    loop = make_drafting(most=4, kinds="g", max_model_len=14)
    group = submit(loop, PROMPT, max_tokens=max_tokens)
    run(loop, [group])
    (output,) = outputs(group)
    assert output == expected(PROMPT, num_tokens=min(max_tokens, 14 - len(PROMPT)))


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE])
@pytest.mark.parametrize("kinds", ["g", "b", "gmobn"])
@pytest.mark.parametrize("groups", [(FULL_GROUP,), WINDOWS])
def test_output_under_preemption_is_what_it_is_without(
    mode: PreemptionMode, kinds: str, groups: tuple[CacheGroup, ...]
) -> None:
    num_blocks = 9 * len(groups)
    loop = make_drafting(
        kinds=kinds, num_gpu_blocks=num_blocks, num_cpu_blocks=20, mode=mode, groups=groups
    )
    requests = [submit(loop, [*PROMPT, i], max_tokens=18) for i in range(3)]
    run(loop, requests)
    assert sum(group.num_preemptions for group in requests)
    for group in requests:
        assert_outputs(group)


def test_drafts_preempt_no_group() -> None:
    """They take the blocks that are free; the sequence goes on without if there are none."""
    loop = make_drafting(most=64, kinds="g", num_gpu_blocks=8)
    groups = [submit(loop, [*PROMPT, i], max_tokens=10) for i in range(2)]
    run(loop, groups)
    assert not sum(group.num_preemptions for group in groups)


def test_drafts_leave_tokens_of_the_step_to_decodes_and_prompts() -> None:
    loop = make_drafting(most=64, kinds="b", max_num_batched_tokens=16, num_gpu_blocks=200)
    groups = [submit(loop, [*PROMPT, i], max_tokens=60) for i in range(4)]
    while not all(group.times.first_token for group in groups):
        loop.turn()
    late = submit(loop, [9] * 30, max_tokens=2)
    counts = [len(group.sequences[0].output_token_ids) for group in groups]
    num_turns = 0
    while late.times.first_token is None:
        loop.turn()
        num_turns += 1
    assert num_turns < 12
    after = [len(group.sequences[0].output_token_ids) for group in groups]
    assert all(new >= old + num_turns - 1 for new, old in zip(after, counts, strict=True))
    run(loop, [*groups, late])


def test_only_requests_that_speculate_have_drafts() -> None:
    loop = make_drafting(kinds="g")
    plain = submit(loop, PROMPT, max_tokens=12, no_speculation=True, prediction=(1,))
    search = submit(loop, [9, *PROMPT], max_tokens=6, beam_search=BeamSearchParams(width=2))
    for _ in range(30):
        if loop.send():
            plan = loop.scheduler.in_flight[-1]
            assert not plan.num_drafts
            assert not any(new.prediction for new in plan.to_step(epoch=1).new)
        loop.scheduler.check()
        loop.answer()
    assert_outputs(plain)
    assert_found(search)
    assert_all_free(loop)


def test_a_sequence_that_fails_in_a_run_ends_without_its_tokens() -> None:
    loop = make_drafting(most=3, kinds="g")
    group, other = (submit(loop, [*PROMPT, i], max_tokens=20) for i in range(2))
    loop.turn(3)
    loop.send()
    result = loop.worker.execute(loop.sent.popleft())
    (seq,) = group.sequences
    kept = list(seq.output_token_ids)
    runs = result.runs(dict.fromkeys(result.seq_ids.tolist(), 0))
    left = runs[other.sequences[0].seq_id, 0]
    result.seq_ids, result.num_tokens = int64s([other.sequences[0].seq_id]), int32s([len(left)])
    result.token_ids = int32s(result.token_ids.tolist()[left.start : left.stop])
    result.failures = {seq.seq_id: NOT_FINITE}
    plan = loop.scheduler.in_flight[0]
    assert find_fault(plan, result, vocab_size=VOCAB_SIZE) is None
    assert loop.scheduler.update(result, loop.now).ended == [group]
    assert seq.output_token_ids == kept
    run(loop, [other])
    assert_outputs(other)


def test_an_aborted_group_gives_all_blocks_back_after_its_runs() -> None:
    loop = make_drafting(most=9, kinds="g")
    group = submit(loop, PROMPT, max_tokens=40)
    loop.turn(2)
    loop.send()
    loop.send()
    loop.scheduler.abort(group)
    loop.run()
    assert_all_free(loop)


def test_a_branch_that_is_stopped_drops_the_runs_in_flight() -> None:
    loop = make_drafting(most=3, kinds="g")
    group = submit(loop, PROMPT, max_tokens=40, n=2)
    loop.turn(4)
    loop.send()
    assert not loop.scheduler.stop_sequence(group, index=1, keep_tokens=2)
    run(loop, [group])
    first, second = outputs(group)
    assert first == expected(PROMPT, num_tokens=40)
    assert second == expected(PROMPT, num_tokens=2, branch=1)


@pytest.mark.parametrize("n", [1, 2])
def test_the_end_of_a_prompt_has_no_drafts_though_it_is_one_token(n: int) -> None:
    loop = make_drafting(kinds="g", max_num_batched_tokens=len(PROMPT) - 1)
    group = submit(loop, PROMPT, max_tokens=6, n=n)
    loop.send()
    loop.send()
    (plan,) = [plan for plan in loop.scheduler.in_flight if plan.num_samples == [n]]
    assert plan.num_new_tokens == [1]
    assert not plan.num_drafts
    run(loop, [group])
    assert_outputs(group)


def test_a_request_and_its_worker_count_what_became_of_drafts() -> None:
    loop = make_drafting(most=3, kinds="m", depth=1)
    group = submit(loop, PROMPT, max_tokens=8)
    run(loop, [group])
    # Three runs of two tokens, the last of which had room for two drafts; then the last token.
    use = group.speculation
    assert (use.num_runs, use.num_drafts, use.num_accepted) == (3, 8, 3)
    from_prediction = SOURCES[group.sequences[0].seq_id % 2] is DraftSource.PREDICTION
    counts = (8, 3) if from_prediction else (0, 0)
    assert (use.num_predicted, use.num_predicted_accepted) == counts
    assert finished_request(group, now=loop.now).speculation == use
    *of_worker, at_0, at_1, at_2 = _samples_of_drafts(loop.scheduler.samples())
    assert [one.value for one in (at_0, at_1, at_2)] == [3, 0, 0]
    assert at_1.labels == {"position": "1"}
    for samples in (of_worker, _samples_of_drafts(group.samples())):
        assert {one.name: one.value for one in samples} == {
            "spec_decode_num_drafts": 3,
            "spec_decode_num_draft_tokens": 8,
            "spec_decode_num_accepted_tokens": 3,
        }


def _samples_of_drafts(samples: Iterable[Sample]) -> list[Sample]:
    return [one for one in samples if one.name.startswith("spec_decode")]


def test_a_run_of_tokens_is_one_message_for_a_router() -> None:
    loop = make_drafting(most=3, kinds="g")
    group = submit(loop, PROMPT, max_tokens=40)
    other = submit(loop, [9], max_tokens=40, no_speculation=True)
    loop.turn(3)
    loop.send()
    outcome = loop.answer()
    assert outcome is not None
    updates = router_updates(outcome, now=loop.now).values()
    told = sorted(len(token_ids) for one in updates for _, _, token_ids, _ in one.runs())
    assert told == [1, 4]
    run(loop, [group, other])


@pytest.mark.parametrize(("num_drafts", "is_dear"), [(0, True), (7, False)])
def test_the_masks_of_a_run_are_as_dear_as_one_of_them(num_drafts: int, is_dear: bool) -> None:
    """Eight masks that take as much together, beside a request without any."""
    loop = make_drafting(most=7, kinds="g", num_gpu_blocks=200)
    group = submit(loop, PROMPT, max_tokens=90, structured_output=("regex", "a"))
    submit(loop, [9], max_tokens=90, no_speculation=True)
    while group.times.first_token is None:
        loop.turn()
        loop.compile()
    (seq,) = group.sequences
    loop.send()
    result = loop.worker.execute(loop.sent.popleft())
    assert result.drafts is not None and result.drafts.num_drafts.tolist() == [7]
    result.timings = StepTimings(forward_ns=10**6)
    result.masks = MaskTimes(int64s([seq.seq_id]), int64s([int(8e9 * USUAL_S)]))
    if not num_drafts:
        result.drafts = None
    loop.scheduler.update(result, loop.now)
    loop.send()
    assert (group in loop.scheduler.in_flight[-1].dear) is is_dear
