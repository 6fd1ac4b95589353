"""What a step with drafts computes and keeps, and what it refuses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.drafts import DraftCounts, DraftLimits, DraftSource
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import Step, TablePatch
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sequence_failures import sequence_failure
from signalbox_worker.drafts.proposer import DraftAsk, Drafts, EndedSequence, NoProposer
from signalbox_worker.lease.sequences import drafting
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.builders import make_new, make_runner, make_step

PROMPT = [5, 6, 7, 8, 9, 10]
MOST = 4


class Proposals(NoProposer):
    """Proposes what a test says, and keeps what it was asked and told."""

    def __init__(self, *drafts: Sequence[int]) -> None:
        self.drafts = list(drafts)
        self.asked: list[DraftAsk] = []
        self.learned: list[EndedSequence] = []
        self.forgotten: list[int] = []

    def learn(self, ended: EndedSequence) -> None:
        self.learned.append(ended._replace(token_ids=ended.token_ids.copy()))

    def propose_one(self, ask: DraftAsk) -> Drafts:
        self.asked.append(ask._replace(token_ids=ask.token_ids.copy()))
        return Drafts(self.drafts.pop(0), DraftSource.TEXT)

    def forget(self, seq_id: int) -> None:
        self.forgotten.append(seq_id)


class Broken(Proposals):
    def propose_one(self, ask: DraftAsk) -> Drafts:
        raise LookupError("of a package")

    def learn(self, ended: EndedSequence) -> None:
        raise LookupError("of a package")


def make_drafting(proposer: Any, *, most: int = MOST, **overrides: Any) -> SequenceTable:
    """Builds a table that knows sequence 1: PROMPT is computed in blocks 3 and 1, 20 was drawn."""
    runner = make_runner(**overrides)
    table = SequenceTable(
        model=runner.model,
        capacity=replace(runner.profile(), max_draft_tokens=most),
        num_gpu_blocks=runner.config.num_gpu_blocks,
        grammars=Grammars(runner.model, tokenizer_json=b""),
        proposer=proposer,
    )
    table.append_tokens(draw(table.apply(make_step(new=[make_new(1, PROMPT, [3, 1, 2])])), 20))
    return table


def limited(limits: dict[int, int], **fields: Any) -> Step:
    """Builds a step in which each sequence computes its last token, and drafts."""
    running = fields.pop("running", dict.fromkeys(limits, 1))
    columns = DraftLimits(int64s(list(limits)), int32s(list(limits.values())))
    return make_step(2, running=running, draft_limits=columns, **fields)


def draw(batch: Batch, *tokens: int, failed: dict[int, str] | None = None) -> BatchOutput:
    assert len(tokens) == len(batch.rows)
    return BatchOutput(token_ids=np.array(tokens, dtype=np.int32), failed=failed or {})


def test_drafts_are_computed_behind_the_last_token_and_drawn_behind() -> None:
    table = make_drafting(proposals := Proposals([21, 22]))
    batch = table.apply(limited({1: 3}))
    assert proposals.asked[0].token_ids.tolist() == [*PROMPT, 20]
    assert (proposals.asked[0].seq_id, proposals.asked[0].most) == (1, 3)
    assert batch.token_ids.tolist() == [20, 21, 22]
    assert batch.positions.tolist() == [6, 7, 8]
    assert batch.slot_mapping.tolist() == [6, 7, 8]
    assert batch.query_start.tolist() == [0, 3]
    assert batch.context_lens.tolist() == [9]
    assert batch.rows.token_index.tolist() == [0, 1, 2]
    assert batch.rows.position.tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("drawn", "kept"),
    [
        ((21, 22, 23), [21, 22, 23]),
        ((21, 30, 23), [21, 30]),
        ((30, 22, 23), [30]),
    ],
)
def test_a_run_goes_up_to_the_first_draw_that_differs(
    drawn: Sequence[int], kept: list[int]
) -> None:
    table = make_drafting(Proposals([21, 22], []))
    samples = draw(table.apply(limited({1: 2})), *drawn)
    samples.logprobs = [Logprobs(row, -1.0 - row, 1, [], []) for row in range(3)]
    result = table.append_tokens(samples)
    assert result.seq_ids.tolist() == [1]
    assert result.token_ids.tolist() == kept
    assert (result.num_tokens is None) == (len(kept) == 1)
    assert result.runs({1: 0}) == {(1, 0): range(len(kept))}
    assert {i: one.logprob for i, one in result.logprobs.items()} == {
        i: -1.0 - i for i in range(len(kept))
    }
    assert result.drafts == DraftCounts(int64s([1]), int32s([2]), int32s([DraftSource.TEXT]))
    assert table.token_ids(1) == [*PROMPT, 20, *kept]
    batch = table.apply(limited({1: 1}))
    assert (batch.token_ids.tolist(), batch.positions.tolist()) == ([kept[-1]], [6 + len(kept)])


def test_sequences_with_drafts_and_without_are_one_batch() -> None:
    table = make_drafting(Proposals([21, 22]))
    other = make_new(2, [1], [4], num_samples=2)
    batch = table.apply(limited({1: 2}, new=[other]))
    assert batch.rows.seq_ids.tolist() == [1, 1, 1, 2, 2]
    assert batch.rows.branch.tolist() == [0, 0, 0, 0, 1]
    result = table.append_tokens(draw(batch, 21, 30, 31, 40, 41))
    assert result.token_ids.tolist() == [21, 30, 40, 41]
    assert result.runs({1: 0, 2: 0}) == {
        (1, 0): range(2),
        (2, 0): range(2, 3),
        (2, 1): range(3, 4),
    }
    assert (table.token_ids(1)[6:], table.token_ids(2)) == ([20, 21, 30], [1, 40])


def test_sequences_are_asked_about_at_once_and_share_the_room_of_the_step() -> None:
    sizes: list[int] = []

    class Together(Proposals):
        def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
            sizes.append(len(asks))
            return super().propose(asks)

    proposer = Together([21, 22, 23], [31, 32, 33])
    table = make_drafting(proposer, max_num_batched_tokens=6)
    table.append_tokens(draw(table.apply(make_step(new=[make_new(2, [1], [4, 5])])), 30))
    batch = table.apply(limited({1: 3, 2: 3}))
    assert batch.token_ids.tolist() == [20, 21, 22, 23, 30, 31]
    assert sizes == [2]
    assert [ask.most for ask in proposer.asked] == [3, 3]


def test_no_proposal_is_a_step_as_any_other() -> None:
    table = make_drafting(Proposals([]))
    batch = table.apply(limited({1: 2}))
    result = table.append_tokens(draw(batch, 21))
    assert (result.num_tokens, result.drafts) == (None, None)


@pytest.mark.parametrize(("drafts", "forward_ns"), [([21], 7 + 500), ([], 7)])
def test_the_time_in_which_drafts_are_proposed_counts_as_the_steps(
    drafts: list[int], forward_ns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = iter(range(1000, 3000, 500))
    monkeypatch.setattr(drafting, "perf_counter_ns", lambda: next(now))
    table = make_drafting(Proposals(drafts))
    samples = draw(table.apply(limited({1: 1})), *[21, 22][: 1 + len(drafts)])
    samples.forward_ns = 7
    table.append_tokens(samples)
    assert samples.forward_ns == forward_ns


@pytest.mark.parametrize(
    ("drafts", "taken"),
    [
        ([21, 22, 23, 24, 25], [21, 22, 23]),  # more than asked for
        ([21, 512, 23], [21]),  # no token of the vocabulary
        ([-1, 22], []),
        (np.array([21, 22]), [21, 22]),
        ([None], []),
    ],
)
def test_a_proposer_is_not_trusted(drafts: Any, taken: list[int]) -> None:
    table = make_drafting(Proposals(drafts))
    assert table.apply(limited({1: 3})).token_ids.tolist() == [20, *taken]


@pytest.mark.parametrize(
    "steps", [[limited({1: 3}), limited({1: 3})], [make_step(2, finished=[1])]]
)
def test_a_proposer_that_raises_is_asked_no_more(
    steps: list[Step], caplog: pytest.LogCaptureFixture
) -> None:
    table = make_drafting(Broken())
    for token, step in enumerate(steps, start=21):
        batch = table.apply(step)
        table.append_tokens(draw(batch, *[token] * len(batch.rows)))
    assert [one.message for one in caplog.records] == [
        "a proposer has failed; this lease computes no more drafts"
    ]


@pytest.mark.parametrize(
    ("options", "num_drafts"),
    [({"max_model_len": 9}, 2), ({"max_num_batched_tokens": 6}, 5), ({}, 8)],
)
def test_drafts_are_as_many_as_there_is_room_for(options: dict[str, int], num_drafts: int) -> None:
    table = make_drafting(Proposals([21] * 8), most=8, **options)
    patches = [TablePatch(1, 3, [7])] if not options else []
    assert len(table.apply(limited({1: 8}, patches=patches)).token_ids) == 1 + num_drafts


def test_drafts_have_blocks() -> None:
    table = make_drafting(Proposals([21] * 4, [21] * 4))
    table.append_tokens(draw(table.apply(limited({1: 4})), 21, 21, 21, 21, 30))
    batch = table.apply(limited({1: 4}))  # positions 11 to 15, and blocks for 12 tokens
    assert batch.positions.tolist() == [11]
    table.append_tokens(draw(batch, 31))
    batch = table.apply(limited({1: 4}, patches=[TablePatch(1, 3, [7])]))
    assert batch.positions.tolist() == [12, 13, 14, 15]


def test_a_failed_draw_fails_its_sequence_as_the_first_of_a_step() -> None:
    table = make_drafting(Proposals([21, 22], [23], []))
    batch = table.apply(limited({1: 2}))
    result = table.append_tokens(draw(batch, 30, 0, 0, failed={1: "not finite", 2: "not finite"}))
    assert (result.token_ids.tolist(), result.failures) == ([30], {})
    batch = table.apply(limited({1: 2}))
    result = table.append_tokens(draw(batch, 23, 0, failed={1: "not finite"}))
    assert (result.token_ids.tolist(), result.failures) == ([23], {})
    batch = table.apply(limited({1: 2}))
    assert batch.token_ids.tolist() == [23]
    result = table.append_tokens(draw(batch, 0, failed={0: "not finite"}))
    assert result.failures == {1: sequence_failure("not finite")}
    batch = table.apply(limited({1: 2}))  # it was sent before that was known
    assert table.append_tokens(draw(batch)).failures == {1: sequence_failure("not finite")}


def test_a_sequence_that_could_not_be_computed_has_no_run() -> None:
    table = make_drafting(Proposals([21, 22]))
    samples = draw(table.apply(limited({1: 2})), 21, 22, 23)
    samples.failed_seqs = {0: "kernel raised"}
    result = table.append_tokens(samples)
    assert result.failures == {1: sequence_failure("kernel raised")}
    assert (result.token_ids.tolist(), result.drafts) == ([], None)


def test_rules_read_the_drafts_before_each_draw() -> None:
    runner = make_runner()
    params = SamplingParams(min_tokens=3, stop_token_ids=(9,), bad_words=((21, 22),))
    table = make_drafting(Proposals([21, 22]))
    new = make_new(2, [5], [4, 5], params=params)
    table.append_tokens(draw(table.apply(make_step(new=[new])), 30))
    suppressed = table.apply(limited({2: 2})).rows.suppressed
    assert suppressed is not None
    ends = [9, *runner.model.eos_token_ids]
    rows = np.split(suppressed.token_ids, suppressed.ends[:-1])
    assert [one.tolist() for one in rows] == [ends, [*ends, 22], []]


def test_what_ends_is_forgotten() -> None:
    table = make_drafting(proposals := Proposals())
    forks = [Fork(1, 1, 0, 30), Fork(1, 2, 1, 31)]
    table.append_tokens(draw(table.apply(make_step(2, forks=forks)), *[]))
    table.append_tokens(draw(table.apply(make_step(3, finished=[2]))))
    assert proposals.forgotten == [1, 2, 2]


def test_what_leaves_is_learned_with_its_owner() -> None:
    table = make_drafting(proposals := Proposals())
    new = make_new(2, [9, 9], [4], owner=b"x")
    table.append_tokens(draw(table.apply(make_step(2, finished=[1], new=[new])), 30))
    table.append_tokens(draw(table.apply(make_step(3, finished=[2]))))
    learned = [one._replace(token_ids=one.token_ids.tolist()) for one in proposals.learned]
    assert learned == [
        (1, [*PROMPT, 20], len(PROMPT), b"", len(PROMPT)),
        (2, [9, 9, 30], 2, b"x", 2),
    ]


def test_a_sequence_that_had_no_drafts_is_offered_when_it_has_some() -> None:
    table = make_drafting(proposals := Proposals([], [21], []))
    table.append_tokens(draw(table.apply(limited({1: 2})), 30))
    offers = []
    for step_id in range(3, 7):
        batch = table.apply(make_step(step_id, running={1: 1}))
        offers.append(table.append_tokens(draw(batch, 30)).draft_offers)
    assert [one.tolist() for one in offers if one is not None] == [[1]]
    assert len(proposals.asked) == 2  # each fourth token, and no more once it is offered


@pytest.mark.parametrize("refused", [[], [512]])
def test_what_the_vocabulary_refuses_is_not_offered(refused: list[int]) -> None:
    table = make_drafting(proposals := Proposals([], refused))
    table.append_tokens(draw(table.apply(limited({1: 2})), 30))
    for step_id in range(3, 7):
        batch = table.apply(make_step(step_id, running={1: 1}))
        assert table.append_tokens(draw(batch, 30)).draft_offers is None
    assert len(proposals.asked) == 2


def test_the_prediction_comes_with_the_request() -> None:
    table = make_drafting(proposals := Proposals([], []))
    new = make_new(2, [5], [4], prediction=(7, 8))
    table.append_tokens(draw(table.apply(make_step(new=[new])), 30))
    table.append_tokens(draw(table.apply(limited({1: 1, 2: 1})), 31, 32))
    assert [ask.prediction.tolist() for ask in proposals.asked] == [[], [7, 8]]
    assert proposals.asked[1].prediction.nbytes == 8, "it may be as long as the window"


REFUSED = {
    "unknown": limited({9: 1}, running={1: 1}),
    "not in the step": limited({1: 1}, running={}),
    "named twice": replace(
        limited({1: 1}), draft_limits=DraftLimits(int64s([1, 1]), int32s([1, 1]))
    ),
    "too many": limited({1: MOST + 1}),
    "new": limited({2: 1}, running={}, new=[make_new(2, [1], [4])]),
    "in its prompt": limited({3: 1}, running={3: 2}),
    "several branches": limited({4: 1}, running={4: 1}),
}


@pytest.mark.parametrize("step", REFUSED.values(), ids=REFUSED)
def test_limits_that_a_step_may_not_have(step: Step) -> None:
    table = make_drafting(Proposals())
    begun = [
        make_new(3, [1, 2, 3, 4], [5], num_new_tokens=1),
        make_new(4, [1, 2], [6], num_new_tokens=1, num_samples=2),
    ]
    table.append_tokens(draw(table.apply(make_step(new=begun))))
    with pytest.raises(InvalidArgument, match="draft_limits"):
        table.apply(step)
    assert table.apply(make_step(2, running={1: 1})).token_ids.tolist() == [20]


def test_a_worker_without_drafts_refuses_all_limits() -> None:
    table = make_drafting(Proposals(), most=0)
    with pytest.raises(InvalidArgument, match="this worker computes no drafts"):
        table.apply(limited({1: 1}))
