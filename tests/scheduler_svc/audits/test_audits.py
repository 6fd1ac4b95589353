"""Audits compute answers again, find what differs, and are in no request's way."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.request import BeamSearchParams
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step_result import StepResult
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.audits.finding import AuditSource, DropReason
from signalbox_scheduler.audits.record import MAX_TOKENS
from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.kv.block_allocator import HoldKind
from signalbox_scheduler.planning.step_audits import StepAudits
from signalbox_scheduler.requests.timeline import EventKind
from tests.scheduler_svc.audits.auditing import Auditing
from tests.scheduler_svc.fake_worker import VOCAB_SIZE, FakeWorker, expected
from tests.scheduler_svc.make import Loop, outputs
from tests.scheduler_svc.routers import turn

PROMPT = list(range(1, 14))
STATES = (FULL_GROUP, CacheGroup(kind="state", state_blocks=2))
WINDOWS = (CacheGroup(kind="window", window=6), FULL_GROUP, CacheGroup(kind="window", window=4))
PARAMS = SamplingParams(
    temperature=0.7,
    top_p=0.9,
    top_k=40,
    min_p=0.01,
    seed=(1 << 64) - 3,
    min_tokens=2,
    stop_token_ids=(96,),
    num_logprobs=2,
    presence_penalty=0.5,
    frequency_penalty=0.25,
    repetition_penalty=1.5,
    typical_p=0.8,
    logit_bias=((3, 1.5),),
    allowed_token_ids=tuple(range(96)),
    bad_words=((5, 6),),
    num_prompt_logprobs=1,
)


def test_an_audit_asks_for_what_the_answer_was_drawn_with(auditing: Auditing) -> None:
    loop = auditing.join("a", max_draft_tokens=4)
    request = {"cache_salt": "salt", "tenant": "t", "nonce": 77}
    group = auditing.add(PROMPT, params=PARAMS, max_tokens=6, num_sequences=2, **request)
    auditing.run()
    auditing.assert_all_equal(1)
    assert len(auditing.new) == 2
    for branch, new in enumerate(auditing.new):
        assert new.branch == branch
        assert (list(new.token_ids), new.num_prompt_tokens) == (PROMPT, len(PROMPT))
        assert (new.num_computed_tokens, new.num_samples) == (0, 1)
        assert new.params == replace(PARAMS, num_prompt_logprobs=None)
        assert list(new.prediction) == outputs(group)[branch]
        assert new.returns_logits
        assert not new.owner, "its output is a source of drafts of others"
    assert not loop.worker.sequences.keys() - set(loop.scheduler.state.worker_state.forget_seq_ids)


@pytest.mark.parametrize("groups", [(FULL_GROUP,), WINDOWS, STATES])
@pytest.mark.parametrize("draft_kinds", ["", "g", "gmobn"])
@pytest.mark.parametrize("n", [1, 3])
def test_equal_answers_pass(
    auditing: Auditing, groups: tuple[CacheGroup, ...], draft_kinds: str, n: int
) -> None:
    most = 5 if draft_kinds else 0
    loop = auditing.join("a", max_draft_tokens=most, groups=groups, num_gpu_blocks=256)
    loop.worker.draft_kinds = draft_kinds
    for kind in (1, 1, 2):  # the second finds the blocks of the first
        auditing.add([kind] * 13, max_tokens=9, num_sequences=n, snapshot_positions=(8,))
    while len(auditing.cluster.requests):
        turn(auditing.cluster, loop)
    hashes = dict(loop.scheduler.blocks.gpu.hashes)
    auditing.run()
    auditing.assert_all_equal(3)
    assert auditing.log.num_tokens == 3 * n * 9
    assert loop.scheduler.blocks.gpu.hashes == hashes, "an audit has published blocks"


@pytest.mark.parametrize("mode", PreemptionMode)
def test_answers_under_preemption_pass(auditing: Auditing, mode: PreemptionMode) -> None:
    loop = auditing.join("a", mode=mode, num_gpu_blocks=9, num_cpu_blocks=20)
    for kind in (1, 2, 3):
        auditing.add([kind] * 9, max_tokens=12)
    auditing.run()
    assert loop.scheduler.preemption.num_preemptions
    auditing.assert_all_equal(3)


def spoil_cached_blocks(worker: FakeWorker) -> None:
    """Lets each block hold a neighbour's tokens."""
    for block, content in worker.gpu.items():
        worker.gpu[block] = {
            slot: ((token_id + 1) % VOCAB_SIZE, value)
            for slot, (token_id, value) in content.items()
        }


def test_an_answer_from_a_wrong_block_is_found(
    auditing: Auditing, caplog: pytest.LogCaptureFixture
) -> None:
    loop = auditing.join("a")
    auditing.add(PROMPT, max_tokens=4)
    auditing.run()
    spoil_cached_blocks(loop.worker)
    group = auditing.add(PROMPT, max_tokens=4)
    auditing.run()
    (finding,) = auditing.findings
    right = expected(PROMPT, num_tokens=4)
    assert (finding.request_id, finding.branch, finding.position) == ("r2", 0, 0)
    assert finding.answered.token_id == outputs(group)[0][0] != right[0] == finding.audited.token_id
    assert finding.answered.logit_bits != finding.audited.logit_bits
    assert (finding.source, finding.suspect) == (AuditSource.WORKER, "a")
    assert finding.history == "was computed by a, found 12 tokens of its prompt cached"
    assert auditing.log.num_equal == auditing.log.num_different[AuditSource.WORKER] == 1
    (line,) = [line for line in caplog.records if line.levelname == "ERROR"]
    assert "r2, branch 0, output token 0, another token" in line.getMessage()
    auditing.assert_idle()


@pytest.mark.parametrize(("branch", "position"), [(0, 0), (0, 4), (2, 0), (2, 3)])
def test_one_bit_of_a_logit_is_found(auditing: Auditing, branch: int, position: int) -> None:
    loop = auditing.join("a")
    group = auditing.add(PROMPT, max_tokens=6, num_sequences=3)
    while turn(auditing.cluster, loop):
        if group.logits is not None and len(group.logits.by_branch.get(branch, ())) > position:
            known = group.logits.by_branch[branch]
            bits = np.array(known, dtype=np.float32).view(np.uint32)
            bits[position] ^= 1
            known[:] = bits.view(np.float32).tolist()
            break
    auditing.run()
    (finding,) = auditing.findings
    assert (finding.branch, finding.position) == (branch, position)
    assert finding.is_logit_alone
    assert finding.answered.logit_bits ^ finding.audited.logit_bits == 1
    auditing.assert_idle()


def test_every_tenth_audit_draws_token_by_token(auditing: Auditing) -> None:
    auditing.join("a", max_draft_tokens=4)
    had_drafts = []
    for kind in range(20):
        first = len(auditing.plans)
        auditing.add([kind] * 5, max_tokens=6)
        auditing.run()
        plans = [plan for _, plan in auditing.plans[first:] if plan.is_audit]
        had_drafts.append(any(plan.num_drafts for plan in plans))
    auditing.assert_all_equal(20)
    assert [i for i, had in enumerate(had_drafts) if not had] == [9, 19]


def start_audit(auditing: Auditing, loop: Loop, **fields: Any) -> None:
    """Runs until a step of an audit is in flight."""
    auditing.add(PROMPT, **{"max_tokens": 12} | fields)
    while not (loop.scheduler.in_flight and loop.scheduler.in_flight[0].is_audit):
        assert loop.send()
        if not loop.scheduler.in_flight[0].is_audit:
            outcome = loop.answer()
            assert outcome is not None
            auditing.cluster.requests.send_updates(outcome)


def test_a_request_waits_for_the_step_in_flight_alone(auditing: Auditing) -> None:
    loop = auditing.join("a")
    start_audit(auditing, loop)
    group = auditing.add([7] * 9, max_tokens=5)
    first = len(auditing.plans)
    assert loop.send()
    (_, plan), *_ = auditing.plans[first:]
    assert {seq.group for seq in plan.seqs} == {group}
    while not group.is_finished:
        assert not any(plan.is_audit for _, plan in auditing.plans[first:])
        turn(auditing.cluster, loop)
    assert auditing.log.num_equal == 0
    auditing.run()
    auditing.assert_all_equal(2)


def test_an_audit_leaves_no_snapshots(auditing: Auditing) -> None:
    loop = auditing.join("a", groups=STATES)
    start_audit(auditing, loop)
    loop.answer()
    (hold,) = [one for one in loop.scheduler.blocks.gpu.holds if one.kind is HoldKind.AUDIT]
    assert len(hold.blocks) == len(PROMPT) // 4 + 1 + 1  # of tokens, and one state
    auditing.run()
    auditing.assert_all_equal(1)


def test_no_audit_goes_on_while_a_request_waits_for_its_grammar(auditing: Auditing) -> None:
    loop = auditing.join("a")
    start_audit(auditing, loop)
    loop.answer()
    auditing.add([7] * 9, params=SamplingParams(structured_output=("regex", "a")))
    assert not loop.send()
    assert loop.compile()
    auditing.run()
    auditing.assert_all_equal(2)


def test_an_audit_gives_way_where_blocks_are_short(auditing: Auditing) -> None:
    loop = auditing.join("a", num_gpu_blocks=8)
    start_audit(auditing, loop)
    group = auditing.add([7] * 20, max_tokens=8)  # seven blocks
    loop.send()
    assert auditing.log.num_dropped == {DropReason.BLOCKS: 1}
    assert not loop.scheduler.running, "the step in flight has blocks of the audit"
    loop.answer()
    loop.send()
    assert loop.scheduler.running == [group]
    auditing.run()
    assert group.num_preemptions == 0
    assert outputs(group) == [expected([7] * 20, num_tokens=8)]
    assert auditing.log.num_equal == 1  # that of the second
    auditing.assert_idle()


def test_a_group_that_needs_all_blocks_comes_in_beside_an_audit_that_waits(
    auditing: Auditing,
) -> None:
    loop = auditing.join("a", num_gpu_blocks=8, watermark=0.25)
    start_audit(auditing, loop, max_tokens=2)
    loop.answer()
    group = auditing.add([7] * 24, max_tokens=8)  # all eight in the end, two more than free ones
    loop.send()
    assert loop.scheduler.running == [group]
    auditing.run()
    auditing.assert_idle()


@pytest.mark.parametrize("what", ["drain", "role", "leave", "reset"])
def test_an_audit_ends_with_what_its_worker_is_for(auditing: Auditing, what: str) -> None:
    loop = auditing.join("a")
    start_audit(auditing, loop)
    steps = auditing.steps["a"]
    if what == "reset":
        loop.answer()
        assert loop.scheduler.reset_prefix_cache()
    elif what == "drain":
        auditing.cluster.drain(steps)
        assert not steps.is_drained
        auditing.run()
        assert steps.is_drained
    elif what == "leave":
        auditing.cluster.leave(steps)
        loop.scheduler.check()
        assert type(loop.scheduler.state.audits) is StepAudits, "it is kept in memory"
    else:
        steps.asked_role = WorkerRole.DECODE
        auditing.join("b")
        loop.answer()
    assert auditing.log.num_dropped == {DropReason.WORKER: 1}
    assert loop.scheduler.blocks.gpu.num_free == loop.scheduler.blocks.gpu.num_blocks


def test_another_worker_of_the_same_arithmetic_audits(auditing: Auditing) -> None:
    auditing.join("a")
    auditing.add(PROMPT)
    auditing.run("a")
    assert auditing.audited_by == ["a"]
    auditing.join("b")
    auditing.join("c", arithmetic="c5" * 32)
    auditing.add(PROMPT)
    auditing.run("a")
    assert auditing.log.num_equal == 1
    auditing.run("c")
    auditing.run("b")
    auditing.assert_all_equal(2)
    assert auditing.audited_by == ["a", "b"]
    auditing.add(PROMPT)
    auditing.run("a")
    auditing.cluster.drain(auditing.steps["b"])
    auditing.run("a")
    auditing.assert_all_equal(3)
    assert auditing.audited_by == ["a", "b"]


@pytest.mark.parametrize("name", ["b", "a"])
def test_an_answer_of_two_arithmetics_is_not_audited(auditing: Auditing, name: str) -> None:
    loop = auditing.join("a")
    group = auditing.add(PROMPT)
    while not group.num_completion_tokens:
        turn(auditing.cluster, loop)
    auditing.cluster.leave(auditing.steps.pop("a"))
    del auditing.loops["a"]
    auditing.join(name, arithmetic="c5" * 32)
    auditing.run()
    assert auditing.log.num_dropped == {DropReason.ARITHMETIC: 1}
    assert not auditing.audited_by


def test_an_answer_that_goes_on_after_a_loss_passes(auditing: Auditing) -> None:
    loop = auditing.join("a")
    group = auditing.add(PROMPT, num_sequences=2)
    while not group.num_completion_tokens:
        turn(auditing.cluster, loop)
    loop.send()
    auditing.cluster.leave(auditing.steps.pop("a"))
    del auditing.loops["a"]
    auditing.join("b")
    auditing.run()
    auditing.assert_all_equal(1)


def test_bits_that_depend_on_the_batch_are_not_audited(auditing: Auditing) -> None:
    auditing.join("a", arithmetic="")
    auditing.add(PROMPT)
    auditing.run()
    assert auditing.log.num_chosen == 0
    assert not auditing.audited_by


@pytest.mark.parametrize(
    "fields",
    [
        {"beam_search": BeamSearchParams(width=2)},
        {"attempt": 1},
        {"num_sequences": 1 + MAX_TOKENS // len(PROMPT), "max_tokens": 1},
    ],
)
def test_some_requests_are_never_chosen(auditing: Auditing, fields: dict[str, Any]) -> None:
    auditing.join("a", max_num_seqs=400, num_gpu_blocks=1000)
    auditing.add(PROMPT, **fields)
    auditing.run()
    assert auditing.log.num_chosen == 0
    assert not auditing.audited_by


@pytest.mark.parametrize("how", ["aborted", "late"])
def test_a_request_that_fails_is_not_audited(auditing: Auditing, how: str) -> None:
    loop = auditing.join("a")
    group = auditing.add(PROMPT, deadline=5.0)
    for _ in range(3):
        turn(auditing.cluster, loop)
    if how == "late":
        auditing.now = 5.0
        auditing.cluster.requests.expire()
    else:
        auditing.cluster.requests.abort(group)
    auditing.run()
    assert auditing.log.num_dropped == {DropReason.FAILED_REQUEST: 1}
    auditing.assert_idle()


def test_a_stopped_answer_is_audited_as_far_as_it_was_kept(auditing: Auditing) -> None:
    loop = auditing.join("a")
    group = auditing.add(PROMPT, max_tokens=9)
    while group.num_completion_tokens < 5:
        turn(auditing.cluster, loop)
    auditing.cluster.requests.stop_sequence(group, index=0, keep_tokens=3)
    auditing.run()
    auditing.assert_all_equal(1)
    assert auditing.log.num_tokens == 3


def begin_with_adapter(auditing: Auditing) -> Loop:
    """Returns a loop with a step of an audit in flight, whose answer was drawn with adapter x."""
    loop = auditing.join("a")
    auditing.cluster.admission.adapters = frozenset({"x"})
    group = auditing.add(PROMPT)
    group.request = replace(group.request, adapter="x")
    while not (loop.scheduler.in_flight and loop.scheduler.in_flight[0].is_audit):
        if (outcome := loop.answer()) is not None:
            auditing.cluster.requests.send_updates(outcome)
        loop.send()
    return loop


def test_an_adapter_that_has_left_ends_an_audit(auditing: Auditing) -> None:
    begin_with_adapter(auditing)
    assert "x" in auditing.cluster.needed_adapters()
    auditing.cluster.admission.adapters = frozenset()
    auditing.run()
    assert auditing.log.num_dropped == {DropReason.ADAPTER: 1}
    assert "x" not in auditing.cluster.needed_adapters()
    auditing.assert_idle()


def test_an_adapter_that_comes_back_does_not_let_an_audit_go_on(auditing: Auditing) -> None:
    """The worker may have another adapter where the audit's was."""
    loop = begin_with_adapter(auditing)
    auditing.add(PROMPT)
    while not loop.scheduler.running:
        turn(auditing.cluster, loop)
    auditing.cluster.admission.adapters = frozenset()
    turn(auditing.cluster, loop)
    assert loop.scheduler.running, "the audit pauses"
    auditing.cluster.admission.adapters = frozenset({"x"})
    auditing.run()
    assert auditing.log.num_dropped == {DropReason.ADAPTER: 1}
    auditing.assert_idle()


def test_a_step_without_logits_leaves_an_answer_unaudited(
    auditing: Auditing, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = auditing.join("a")
    execute, num_steps = FakeWorker.execute, 0

    def silent(worker: FakeWorker, plan: Any) -> StepResult:
        nonlocal num_steps
        num_steps += 1
        result = execute(worker, plan)
        if num_steps == 3:
            result.draw_logits = None
        return result

    monkeypatch.setattr(FakeWorker, "execute", silent)
    auditing.add(PROMPT)
    auditing.run()
    assert auditing.log.num_dropped == {DropReason.INCOMPLETE: 1}
    assert not loop.scheduler.in_flight


def test_nothing_that_users_count_counts_an_audit(auditing: Auditing) -> None:
    loop = auditing.join("a", max_draft_tokens=4)
    group = auditing.add(PROMPT)
    while not group.is_finished:
        turn(auditing.cluster, loop)
    counted = [
        sample for sample in auditing.cluster.samples() if not sample.name.startswith("audit")
    ]
    counted += loop.scheduler.samples()
    before = repr(counted)
    history = list(auditing.cluster.requests.history.request_ids)
    start = len(auditing.plans)
    while turn(auditing.cluster, loop):
        assert not loop.scheduler.running
        assert not len(auditing.cluster.requests)
    assert any(plan.is_audit for _, plan in auditing.plans[start:])
    auditing.assert_all_equal(1)
    counted = [
        sample for sample in auditing.cluster.samples() if not sample.name.startswith("audit")
    ]
    counted += loop.scheduler.samples()
    assert repr(counted) == before
    assert list(auditing.cluster.requests.history.request_ids) == history
    assert list(auditing.router.ended) == [1]


def test_audits_that_are_off_ask_for_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    off = Auditing(monkeypatch, audit_cpu=0.0)
    loop = off.join("a")
    group = off.add(PROMPT)
    assert group.logits is None
    off.run()
    assert not any(new.returns_logits for _, plan in off.plans for new in plan.to_step(epoch=1).new)
    assert not off.audited_by
    assert loop.scheduler.state.audits.next_poll_at == float("inf")


def test_a_failed_step_drops_its_audit(auditing: Auditing) -> None:
    loop = auditing.join("a", groups=STATES)
    start_audit(auditing, loop)
    loop.worker.fails_next = True
    auditing.run()
    assert auditing.log.num_dropped == {DropReason.FAILED: 1}
    assert not auditing.findings
    auditing.assert_idle()


def test_a_finding_is_explained_and_its_block_is_used_no_more(auditing: Auditing) -> None:
    loop = auditing.join("a")
    auditing.add(PROMPT, max_tokens=4)
    auditing.run()
    spoil_cached_blocks(loop.worker)
    auditing.add(PROMPT, max_tokens=4)
    auditing.run()
    wrong = "another token at output position 0; suspected source: worker a"
    for request_id, detail in (("r1", ""), ("r2", wrong)):
        known = auditing.cluster.requests.explain(request_id)
        assert known is not None
        event = known.events[-1]
        assert (event.kind, event.worker, event.detail) == (EventKind.AUDITED, "a", detail)
    group = auditing.add(PROMPT, max_tokens=4)
    auditing.run()
    assert outputs(group) == [expected(PROMPT, num_tokens=4)]
    samples = {(one.name, *one.labels.values()): one.value for one in auditing.cluster.samples()}
    assert samples["audits_different", "worker"] == 1
    assert samples["audits_equal",] == 2
