"""Sequences have the drafts that bring the most tokens a second, and none where none do."""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from signalbox_contract.columns import int32s
from signalbox_contract.sections.drafts import DraftSource
from signalbox_contract.step_result import StepResult, StepTimings
from signalbox_contract.updates import FinishReason
from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.planning.draft_lengths import (
    FORGET_STEPS,
    IDLE_STEPS,
    MEASURE_STEPS,
    RowCosts,
)
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.fake_worker import EncodedPlan, FakeWorker
from tests.scheduler_svc.make import Loop, make_loop, make_request, make_scheduler

MOST = 8
Cost = Callable[[int, int], float]
"""Nanoseconds of a step by its sequences and its drafts."""


def reading_weights(num_seqs: int, num_drafts: int) -> float:
    """Rows cost little beside the weights."""
    return 1e6 + 5e4 * (num_seqs + num_drafts)


def computing(num_seqs: int, num_drafts: int) -> float:
    """Each row costs what a token does."""
    return 1e6 * (num_seqs + num_drafts)


@dataclass(slots=True)
class MeasuredWorker(FakeWorker):
    """Reports times, and proposes drafts of which each is right with a probability."""

    cost: Cost = reading_weights
    share: float = 0.9
    """Probability that a draft is right if all before it are."""
    rng: random.Random = field(default_factory=lambda: random.Random(7))
    total_ns: float = 0.0
    num_tokens: int = 0
    num_drafts: int = 0

    def execute(self, plan: EncodedPlan) -> StepResult:
        result = FakeWorker.execute(self, plan)
        num_drafts = sum(result.drafts.num_drafts.tolist()) if result.drafts is not None else 0
        cost = self.cost(len(plan.seq_ids), num_drafts)
        result.timings = StepTimings(forward_ns=int(cost))
        self.total_ns += cost
        self.num_tokens += len(result.token_ids)
        self.num_drafts += num_drafts
        return result

    def _propose(self, seq_id: int, plan: EncodedPlan) -> list[int]:
        drafts = FakeWorker._propose(self, seq_id, plan)
        for row in range(len(drafts)):
            if self.rng.random() >= self.share:
                drafts[row] = (drafts[row] + 1) % 97
                break
        return drafts


def make_measured(
    cost: Cost,
    *,
    share: float,
    most: int = MOST,
    num_seqs: int = 1,
    kinds: str = "g",
    **options: Any,
) -> Loop:
    """Returns a loop whose sequences have their first token."""
    scheduler = make_scheduler(
        max_draft_tokens=most,
        block_size=16,
        num_gpu_blocks=2000,
        max_model_len=2000,
        **options,
    )
    loop = make_loop(scheduler)
    loop.worker = MeasuredWorker(16, draft_kinds=kinds, cost=cost, share=share)
    for number in range(num_seqs):
        loop.scheduler.admission.add(make_request([1, 2, number], max_tokens=1500))
    loop.turn(3)
    return loop


def measured(loop: Loop) -> MeasuredWorker:
    assert isinstance(loop.worker, MeasuredWorker)
    return loop.worker


def rate(cost: Cost, *, share: float, most: int = MOST, num_seqs: int = 1) -> float:
    """Returns the tokens a second that sequences get."""
    loop = make_measured(cost, share=share, most=most, num_seqs=num_seqs)
    loop.turn(40)
    worker = measured(loop)
    num_tokens, total_ns = worker.num_tokens, worker.total_ns
    loop.turn(120)
    loop.scheduler.check()
    return (worker.num_tokens - num_tokens) / (worker.total_ns - total_ns)


def group_of(loop: Loop) -> SequenceGroup:
    (group,) = loop.scheduler.running
    return group


@pytest.mark.parametrize("num_seqs", [1, 4])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
@pytest.mark.parametrize("cost", [reading_weights, computing])
def test_the_rate_is_near_that_of_the_best_length(cost: Cost, share: float, num_seqs: int) -> None:
    def of_length(num_drafts: int) -> float:
        gained = sum(share**i for i in range(num_drafts + 1))
        return num_seqs * gained / cost(num_seqs, num_drafts * num_seqs)

    best = max(map(of_length, range(MOST + 1)))
    assert rate(cost, share=share, num_seqs=num_seqs) >= 0.9 * best


@pytest.mark.parametrize("num_seqs", [1, 8])
def test_drafts_that_are_never_right_cost_little(num_seqs: int) -> None:
    on = rate(reading_weights, share=0.0, num_seqs=num_seqs)
    assert on >= 0.98 * rate(reading_weights, share=0.0, num_seqs=num_seqs, most=0)


def test_misleading_texts_cost_little_from_the_first_step_on() -> None:
    """Eight clients of a model of a billion weights, whose drafts are all refused."""

    def measured_on_two_cores(num_seqs: int, num_drafts: int) -> float:
        return 5e6 * (num_seqs + 0.72 * num_drafts)

    loop = make_measured(measured_on_two_cores, share=0.0, num_seqs=0)
    overheads = list[float]()
    for round_ in range(3):
        worker = measured(loop)
        worker.total_ns, worker.num_tokens = 0.0, 0
        for number in range(8):
            prompt = [1, round_, number]
            loop.scheduler.admission.add(make_request(prompt, arrival=loop.now, max_tokens=128))
        loop.turn(200)
        overheads.append(worker.total_ns / worker.num_tokens / 5e6 - 1)
    assert overheads[0] < 0.03
    assert max(overheads[1:]) < 0.015


def test_a_sequence_that_pauses_is_in_the_decode_batch_and_tries_again_ever_later() -> None:
    loop = make_measured(reading_weights, share=0.0)
    group, tries, before = group_of(loop), list[int](), 0
    for number in range(600):
        loop.turn()
        if measured(loop).num_drafts > before and (not tries or number > tries[-1] + 4):
            tries.append(number)
        before = measured(loop).num_drafts
    pauses = [after - one for one, after in itertools.pairwise(tries)]
    assert len(pauses) >= 3
    assert all(after > 1.5 * one for one, after in itertools.pairwise(pauses))
    assert group.is_in_decode_batch


def test_what_has_ended_pauses_no_more() -> None:
    """Else it would be kept: pauses take up to a thousand steps, and an idle worker plans none."""
    loop = make_measured(reading_weights, share=0.0)
    loop.turn(60)
    (seq,) = group_of(loop).sequences
    assert seq.draft_record is not None and seq.draft_record.is_off
    loop.scheduler.abort(group_of(loop))
    loop.scheduler.check()


def test_what_goes_on_elsewhere_pauses_here_no_more() -> None:
    scheduler = make_scheduler(
        max_draft_tokens=MOST, num_gpu_blocks=30, mode=PreemptionMode.RECOMPUTE
    )
    loop = make_loop(scheduler)
    loop.worker = MeasuredWorker(4, draft_kinds="b")
    for number in range(2):
        scheduler.admission.add(make_request([1, 2, number], max_tokens=70))
    for _ in range(200):
        loop.turn()
        if scheduler.preemption.num_preemptions:
            break
    (group,) = scheduler.admission.groups
    (seq,) = group.sequences
    assert seq.draft_record is not None and seq.draft_record.is_off
    seq.finish(FinishReason.LENGTH)  # at another worker
    scheduler.state.drafts.check()


def test_a_sequence_for_which_nothing_is_proposed_joins_the_decode_batch() -> None:
    loop = make_measured(reading_weights, share=1.0, num_seqs=8, kinds="n")
    for _ in range(60):
        loop.turn()
        if all(group.is_in_decode_batch for group in loop.scheduler.running):
            break
    else:
        raise AssertionError("it never joins")
    assert not measured(loop).num_drafts
    measured(loop).draft_kinds = "g"  # the text repeats itself from now on
    loop.turn(60)
    assert not any(group.is_in_decode_batch for group in loop.scheduler.running)
    assert measured(loop).num_drafts


@pytest.mark.parametrize("num_seqs", [1, 8])
def test_a_sequence_for_which_nothing_is_proposed_is_asked_a_few_times(num_seqs: int) -> None:
    loop = make_measured(reading_weights, share=1.0, num_seqs=num_seqs, kinds="n")
    num_asked = 0
    for _ in range(300):
        loop.send()
        num_asked += len(loop.scheduler.in_flight[-1].num_drafts)
        loop.answer()
    assert 0 < num_asked <= num_seqs * (IDLE_STEPS + 2)


def test_an_offer_is_taken_once_its_answer_is_known() -> None:
    loop = make_measured(reading_weights, share=1.0, kinds="n")
    loop.turn(40)
    assert group_of(loop).is_in_decode_batch
    measured(loop).draft_kinds = "g"
    for _ in range(3):
        loop.send()
        loop.answer()
    loop.send()
    assert loop.scheduler.in_flight[-1].num_drafts
    loop.scheduler.check()


def test_a_worker_that_takes_an_idle_sequence_over_is_asked_anew() -> None:
    """It has not been asked, and so it offers nothing."""
    loop = make_measured(reading_weights, share=1.0, kinds="n")
    loop.turn(40)
    group = group_of(loop)
    assert group.is_in_decode_batch
    loop.scheduler.state.decode_batch.release(group)
    loop.scheduler.state.drafts.take(group)
    assert loop.scheduler.state.drafts.speculates(group)


def test_sequences_for_whose_drafts_no_step_has_room_join_the_decode_batch() -> None:
    loop = make_measured(reading_weights, share=1.0, num_seqs=8, max_num_batched_tokens=8)
    num_inside = []
    for _ in range(60):
        loop.turn()
        num_inside.append(sum(group.is_in_decode_batch for group in loop.scheduler.running))
    assert max(num_inside) == 8


@dataclass(slots=True)
class AlternatingWorker(MeasuredWorker):
    """Each fourth step has drafts of a grammar, which are right, and the others those of a text."""

    of_text: float = 0.0
    """Probability that a draft of the text is right."""

    def _propose(self, seq_id: int, plan: EncodedPlan) -> list[int]:
        self.share = self.of_text if plan.step_id % 4 else 1.0
        return MeasuredWorker._propose(self, seq_id, plan)

    def execute(self, plan: EncodedPlan) -> StepResult:
        result = MeasuredWorker.execute(self, plan)
        if result.drafts is not None:
            source = DraftSource.TEXT if plan.step_id % 4 else DraftSource.GRAMMAR
            sources = int32s([int(source)] * len(result.drafts.seq_ids))
            result.drafts = result.drafts._replace(sources=sources)
        return result


@pytest.mark.parametrize("of_text", [0.0, 0.2])
def test_right_drafts_of_a_grammar_are_long_though_those_of_the_text_are_refused(
    of_text: float,
) -> None:
    loop = make_measured(reading_weights, share=0.0, num_seqs=0)
    worker = AlternatingWorker(16, draft_kinds="g", cost=reading_weights, of_text=of_text)
    loop.worker = worker
    loop.scheduler.admission.add(make_request([1, 2], max_tokens=1500))
    loop.turn(160)
    assert worker.num_tokens >= 2.5 * 160


def test_drafts_that_become_right_are_found_again_and_grow() -> None:
    loop = make_measured(reading_weights, share=0.0)
    loop.turn(100)
    measured(loop).share = 1.0
    loop.turn(140)
    loop.send()
    assert loop.scheduler.in_flight[-1].num_drafts == {0: MOST}


def test_times_of_steps_are_between_those_that_were_measured() -> None:
    costs = RowCosts()
    assert not costs.times(1, 0.0, 4)
    costs.observe(num_seqs=1, num_drafts=4, ns=200.0)
    assert not costs.times(1, 0.0, 4)  # a step without drafts is wanted
    costs.observe(num_seqs=1, num_drafts=0, ns=100.0)
    assert costs.times(1, 0.0, 6) == [100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0]
    assert not costs.times(2, 0.0, 4)
    for _ in range(MEASURE_STEPS):
        costs.observe(num_seqs=1, num_drafts=4, ns=200.0)
    assert not costs.times(1, 0.0, 4)


def test_one_step_that_takes_long_does_not_make_drafts_dear() -> None:
    costs = RowCosts()
    for _ in range(8):
        costs.observe(num_seqs=1, num_drafts=0, ns=100.0)
        costs.observe(num_seqs=1, num_drafts=2, ns=120.0)
    costs.observe(num_seqs=1, num_drafts=2, ns=1e6)
    costs.observe(num_seqs=1, num_drafts=0, ns=100.0)
    assert costs.times(1, 0.0, 2)[2] < 200


def test_a_step_that_took_long_by_accident_is_not_held_against_longer_runs_for_good() -> None:
    costs = RowCosts()
    costs.observe(num_seqs=1, num_drafts=0, ns=100.0)
    costs.observe(num_seqs=1, num_drafts=2, ns=900.0)
    costs.observe(num_seqs=1, num_drafts=4, ns=140.0)
    assert costs.times(1, 0.0, 4) == [100.0, 110.0, 120.0, 130.0, 140.0]
    costs.observe(num_seqs=1, num_drafts=5, ns=900.0)
    assert costs.times(1, 0.0, 5)[5] == 900.0
    for _ in range(FORGET_STEPS):
        costs.observe(num_seqs=1, num_drafts=0, ns=100.0)
        costs.observe(num_seqs=1, num_drafts=1, ns=110.0)
    assert costs.times(1, 0.0, 3) == [100.0, 110.0, 120.0, 130.0]


@pytest.mark.parametrize("num_flat", [0, 5])
def test_means_that_differ_by_chance_give_the_times_of_rows(num_flat: int) -> None:
    """Of steps of eight sequences, the first rows of which wait for the weights."""
    rng, costs = random.Random(3), RowCosts()

    def of(num_drafts: float) -> float:
        return 40e6 + 4e6 * max(0.0, num_drafts - num_flat)

    for _ in range(400):
        num_drafts = rng.choice([0, 0, 0, *range(1, 17)])
        noise = rng.gauss(1.0, 0.07) + (rng.random() < 0.02)
        costs.observe(num_seqs=8, num_drafts=num_drafts, ns=of(num_drafts) * noise)
    times = costs.times(8, 2.0, 8)
    for number, time in enumerate(times):
        assert time / times[0] == pytest.approx(of(2 + number) / of(2), rel=0.12)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_many_sequences_whose_rows_cost_as_much_as_their_tokens_have_no_drafts(
    share: float,
) -> None:
    """What was measured of a model of a billion weights with eight clients."""

    def measured_on_two_cores(num_seqs: int, num_drafts: int) -> float:
        noise = rng.gauss(1.0, 0.05)
        return max(25e6, 7e6 + 4.25e6 * (num_seqs + num_drafts)) * noise

    def of(most: int) -> float:
        return rate(measured_on_two_cores, share=share, most=most, num_seqs=8)

    rng = random.Random(5)
    assert of(8) >= 0.98 * of(0)


def test_a_prediction_is_tried_though_the_drafts_of_others_are_refused() -> None:
    loop = make_measured(reading_weights, share=0.0, num_seqs=8)
    loop.turn(60)
    loop.scheduler.admission.add(make_request([7, 8], max_tokens=40, prediction=(1, 2, 3)))
    for _ in range(40):
        loop.send()
        plan = loop.scheduler.in_flight[-1]
        for i, num_drafts in plan.num_drafts.items():
            if plan.seqs[i].group.request.prediction:
                assert (num_drafts, type(num_drafts)) == (1, int)  # a worker makes room by it
                return
        loop.answer()
    raise AssertionError("it is never tried")
