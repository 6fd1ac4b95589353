"""Drafts of an MTP layer, whose own KV and waiting rows must not depend on when it is asked."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts.proposer import NO_PROPOSER, DraftAsk, Drafts, Proposer
from signalbox_worker.runner.mtp.mtp_proposer import MOST_WAITING, MtpProposer
from tests.gpu_worker.draft_loops import MOST, Loop, Wanted
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.mtp_models import make_glm
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

MTP = SpeculationConfig(num_tokens=MOST, mtp=True)
NUM_TOKENS = 40
Answers = dict[int, list[int]]


class Kept:
    """Keeps what a proposer proposes, by the sequence and its number of known tokens."""

    def __init__(self, proposer: MtpProposer) -> None:
        self.proposer = proposer
        self.found: dict[tuple[int, int], list[int]] = {}
        self.learn, self.forget = proposer.learn, proposer.forget

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        proposed = self.proposer.propose(asks)
        for ask, one in zip(asks, proposed, strict=True):
            assert one.source is DraftSource.MTP or not one.token_ids
            self.found[ask.seq_id, len(ask.token_ids)] = [*one.token_ids]
        self.proposer.cache.check()
        return proposed


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("random")
    make_glm(path)
    return path


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("right")
    make_glm(path, is_right=True)
    return path


def load(path: Path, **options: Any) -> Any:
    return make_runner(path, speculation=MTP, max_num_batched_tokens=512, **options)


def own_proposer(runner: Any) -> Kept:
    """Returns the proposer of the MTP layer alone."""
    return Kept(runner._draft_model.make_proposer())


def generate(
    runner: Any, proposer: Proposer, *, limit: Any = lambda: 0, temperature: float = 0.0
) -> tuple[Answers, Loop]:
    """Returns the tokens of prompts of several lengths, one with two branches."""
    loop = Loop(runner, proposer=proposer)
    params = [SamplingParams(temperature=temperature * (i % 2), seed=i) for i in range(4)]
    wanted = [
        Wanted(prompt=prompt, params=one, num_samples=1 + i % 2)
        for i, (prompt, one) in enumerate(zip(make_prompts(3, 50, 1, 20), params, strict=True))
    ]
    answers = loop.generate(wanted, num_tokens=NUM_TOKENS, limit=limit)
    return {key: one.token_ids for key, one in answers.items()}, loop


@pytest.mark.parametrize("kind", ["served", "right"])
def test_drafts_change_no_token(kind: str, request: pytest.FixtureRequest) -> None:
    runner, rng = load(request.getfixturevalue(kind)), random.Random(3)
    expected, _ = generate(runner, NO_PROPOSER, temperature=1.0)
    for limit in (lambda: MOST, lambda: rng.randrange(MOST + 1)):
        found, loop = generate(runner, runner.make_proposer(), limit=limit, temperature=1.0)
        assert found == expected
        assert loop.num_drafts


def test_drafts_of_a_layer_that_is_right_are_accepted(right: Path) -> None:
    runner = load(right)
    expected, without = generate(runner, NO_PROPOSER)
    kept = own_proposer(runner)
    found, loop = generate(runner, kept, limit=lambda: 3)
    assert found == expected
    text = {key: [*loop.prompts[key], *tokens] for key, tokens in found.items()}
    drafts = {(seq, end): ids for (seq, end), ids in kept.found.items() if ids}
    for (seq, end), ids in drafts.items():
        assert ids[: len(text[seq]) - end] == text[seq][end : end + len(ids)]
    assert {len(ids) for ids in drafts.values()} >= {3}
    assert loop.num_steps < without.num_steps / 2


def test_drafts_do_not_depend_on_when_rows_are_read(served: Path) -> None:
    """Rows that wait for long, are read in parts, or with those of others, are all read once."""
    runner = load(served)
    always = own_proposer(runner)
    expected, _ = generate(runner, always, limit=lambda: 2)
    few = own_proposer(runner)
    few.proposer._most_rows = 7
    rng = random.Random(5)
    found, _ = generate(runner, few, limit=lambda: 2 if rng.random() < 0.1 else 0)
    assert found == expected
    same = always.found.keys() & few.found.keys()
    pairs = [(always.found[key], few.found[key]) for key in same]
    pairs = [(one, other) for one, other in pairs if len(one) == len(other) > 0]
    assert len(pairs) > MOST_WAITING
    assert all(one == other for one, other in pairs)


class Forgets(Kept):
    """Forgets each sequence once, as if what comes before had been computed elsewhere."""

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        proposed = super().propose(asks)
        for ask in asks:
            seq_id, num_known = ask.seq_id, len(ask.token_ids)
            if not any(seq == seq_id and end < num_known for seq, end in self.found):
                self.proposer.forget(seq_id)
            elif rows := self.proposer._waiting.get(seq_id):
                assert rows.first - rows.num_read > 0
        return proposed


def test_rows_that_were_computed_elsewhere_are_absent(right: Path) -> None:
    runner = load(right)
    kept = Forgets(runner._draft_model.make_proposer())
    found, loop = generate(runner, kept, limit=lambda: 2)
    text = {key: [*loop.prompts[key], *tokens] for key, tokens in found.items()}
    drafts = [(seq, end, ids) for (seq, end), ids in kept.found.items() if ids]
    assert len(drafts) > NUM_TOKENS
    for seq, end, ids in drafts:
        assert ids[: len(text[seq]) - end] == text[seq][end : end + len(ids)]


def test_without_room_there_are_fewer_drafts_and_the_same_tokens(served: Path) -> None:
    runner = load(served)
    expected, _ = generate(runner, NO_PROPOSER)
    kept = own_proposer(runner)
    size = kept.proposer.cache._block_size
    kept.proposer.cache = type(kept.proposer.cache)(num_rows=3, block_size=size)
    found, loop = generate(runner, kept, limit=lambda: 2)
    assert found == expected
    assert loop.num_drafts
    assert any(not ids for ids in kept.found.values())


def test_a_layer_that_fails_ends_drafts_and_harms_no_request(
    served: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(served)
    expected, _ = generate(runner, NO_PROPOSER)
    kept = own_proposer(runner)

    def fail(*args: Any) -> None:
        raise MemoryError("planned")

    monkeypatch.setattr(kept.proposer, "_taken", fail)
    found, loop = generate(runner, kept, limit=lambda: 2)
    assert found == expected
    assert not loop.num_drafts
    assert caplog.text.count("the MTP layer has failed") == 1
