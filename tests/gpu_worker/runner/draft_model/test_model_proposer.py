"""Drafts of a draft model, which is simulated: a wrong block or a stale slot would change them."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from signalbox_contract.cache_groups import CacheGroup
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.drafts.proposer import NO_PREDICTION, DraftAsk
from signalbox_worker.runner.draft_model.draft_cache import IDLE_STEPS
from signalbox_worker.runner.draft_model.model_proposer import ModelProposer
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_executor import SimulatedExecutor
from tests.gpu_worker.builders import make_runner
from tests.gpu_worker.draft_loops import MOST, Loop, Wanted

VOCAB = 512
SERVED = {"vocab_size": VOCAB, "max_model_len": 256, "num_gpu_blocks": 300, "block_size": 16}
SIZE = 16
WINDOWED = (CacheGroup(kind="full"), CacheGroup(kind="window", window=24))


class Simulated(SimulatedExecutor):
    """Keeps the numbers of tokens of its batches."""

    def __init__(self, **fields: Any) -> None:
        super().__init__(SimulatedConfig(vocab_size=VOCAB, max_model_len=256, **fields))
        self.batches: list[int] = []

    def execute(self, batch: Batch) -> BatchOutput:
        self.batches.append(len(batch.token_ids))
        return super().execute(batch)


def make_proposer(
    *, num_blocks: int = 100, most_tokens: int = 512, clock: Any = lambda: 0, **fields: Any
) -> tuple[ModelProposer, Simulated]:
    executor = Simulated(**fields)
    executor.make_pools(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    capacity = WorkerCapacity(
        block_size=SIZE,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=0,
        block_bytes=1,
        max_num_seqs=16,
        max_num_batched_tokens=most_tokens,
        prefill_tokens_per_s=1000.0,
        groups=executor.config.groups,
    )
    return ModelProposer(executor, capacity, clock=clock), executor


def make_texts(*lengths: int, num_tokens: int = 60, **fields: Any) -> list[list[int]]:
    """Returns prompts of these lengths with what the simulated model continues them with."""
    rng = random.Random(3)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(length)] for length in lengths]
    loop = Loop(make_runner(**SERVED, max_num_batched_tokens=512, **fields))
    loop.generate([Wanted(prompt=prompt) for prompt in prompts], num_tokens=num_tokens)
    return [loop.texts()[10 * i] for i in range(len(prompts))]


def propose(
    proposer: ModelProposer, texts: Sequence[list[int]], ends: Sequence[int], most: int = 4
) -> list[list[int]]:
    """Asks about sequences that know their texts up to these ends."""
    asks = [
        DraftAsk(i, np.array(text[:end], dtype=np.int32), 1, most, NO_PREDICTION, None)
        for i, (text, end) in enumerate(zip(texts, ends, strict=True))
        if end
    ]
    found = proposer.propose(asks)
    assert {one.source for one in found} <= {DraftSource.MODEL}
    proposer.cache.check()
    return [[*one.token_ids] for one in found]


@pytest.mark.parametrize("groups", [(CacheGroup(),), WINDOWED])
def test_drafts_are_what_the_model_continues_with(groups: tuple[CacheGroup, ...]) -> None:
    texts = make_texts(1, 5, 14, groups=groups)
    proposer, executor = make_proposer(groups=groups)
    ends = [2, 6, 15]
    for _ in range(8):
        expected = [text[end : end + 4] for text, end in zip(texts, ends, strict=True)]
        assert propose(proposer, texts, ends) == expected
        ends = [end + 1 + accepted for accepted, end in zip((4, 2, 0), ends, strict=True)]
    assert executor.batches[:4] == [2 + 6 + 15, 3, 3, 3], "all sequences share a batch"
    assert executor.batches[4] == 2 + 1 + 1, "what was accepted is not computed again"


def test_another_token_in_the_place_of_a_draft_gives_other_drafts() -> None:
    (text,) = make_texts(10)
    proposer, _ = make_proposer()
    assert propose(proposer, [text], [11]) == [text[11:15]]
    never_wrong, _ = make_proposer()
    changed = [*text[:13], text[13] ^ 1, *text[14:20]]
    for end in (14, 16, 20):
        assert propose(proposer, [changed], [end]) == propose(never_wrong, [changed], [end])


def test_a_prompt_is_caught_up_in_parts_while_others_have_drafts() -> None:
    texts = make_texts(150, 3)
    proposer, executor = make_proposer()
    assert propose(proposer, texts, [0, 4]) == [texts[1][4:8]]
    end, num_steps, found = 151, 0, list[int]()
    while not found:
        found, near = propose(proposer, texts, [end + num_steps, 5 + num_steps])
        assert near == texts[1][5 + num_steps : 9 + num_steps]
        num_steps += 1
    assert found == texts[0][end + num_steps - 1 :][:4]
    assert num_steps == 10, "16 tokens a step, as nothing is known of its time"
    assert max(executor.batches) == 16 + 1


def test_a_sequence_that_pauses_is_caught_up_meanwhile() -> None:
    texts = make_texts(100, 3)
    proposer, executor = make_proposer()
    assert propose(proposer, texts, [101, 4]) == [[], texts[1][4:8]]
    for num_steps in range(1, 7):
        assert propose(proposer, texts, [0, 4 + num_steps]) == [texts[1][4 + num_steps :][:4]]
    assert propose(proposer, texts, [103, 0]) == [texts[0][103:107]]
    assert sum(executor.batches) == 103 + 4 + 6 + 3 * 8


def test_a_paused_sequence_that_lost_its_rows_is_computed_no_more() -> None:
    texts = make_texts(40, 3)
    proposer, executor = make_proposer(num_blocks=4)
    assert propose(proposer, texts, [41, 0]) == [[]]
    proposer.cache.forget(0)  # as if others had needed them
    assert propose(proposer, texts, [0, 4]) == [texts[1][4:8]]
    assert executor.batches == [16, 4, 1, 1, 1]


def test_a_batch_has_no_more_tokens_than_were_measured() -> None:
    texts = make_texts(9, 9, 9)
    proposer, executor = make_proposer(most_tokens=24)
    assert propose(proposer, texts, [10, 10, 10]) == [texts[0][10:14], texts[1][10:14], []]
    assert propose(proposer, texts, [10, 10, 10]) == [text[10:14] for text in texts]
    assert max(executor.batches) == 24


def test_a_sequence_without_room_has_no_drafts_until_others_end() -> None:
    texts = make_texts(5, 20)
    proposer, _ = make_proposer(num_blocks=2)
    assert propose(proposer, texts, [6, 21]) == [texts[0][6:10], []]
    proposer.forget(0)
    assert propose(proposer, texts, [0, 21]) == [[]], "it catches up"
    assert propose(proposer, texts, [0, 21]) == [texts[1][21:25]]
    assert propose(proposer, texts, [0, 31]) == [texts[1][31:33]], "up to the end of its rows"
    assert propose(proposer, texts, [0, 33]) == [[]]
    assert proposer.cache.num_free_rows == 2
    proposer.forget(1)


def test_a_sequence_that_comes_again_is_computed_again() -> None:
    (text,) = make_texts(9)
    proposer, executor = make_proposer()
    assert propose(proposer, [text], [10]) == [text[10:14]]
    proposer.forget(0)
    assert proposer.cache.num_free_rows == 100
    changed = [text[0] ^ 1, *text[1:]]
    assert propose(proposer, [changed], [10]) != [text[10:14]]
    assert executor.batches[4] == 10


@pytest.mark.parametrize(("end", "num_drafts"), [(250, 4), (254, 3), (256, 1), (257, 0)])
def test_drafts_end_with_the_models_window(end: int, num_drafts: int) -> None:
    text = [5] * 257
    proposer, _ = make_proposer()
    found: list[list[int]] = [[]]
    for _ in range(20):
        found = propose(proposer, [text], [end])
    assert len(found[0]) == num_drafts


@pytest.mark.parametrize("newest", [5, VOCAB])
def test_a_sequence_that_can_have_no_drafts_any_more_keeps_no_rows(newest: int) -> None:
    text = [5] * (256 if newest < VOCAB else 100) + [newest]
    proposer, executor = make_proposer()
    propose(proposer, [text], [len(text) - 1])
    assert proposer.cache.num_free_rows < 100
    assert propose(proposer, [text], [len(text)]) == [[]]
    assert proposer.cache.num_free_rows == 100
    computed = [*executor.batches]
    assert propose(proposer, [text], [len(text)]) == [[]]
    assert executor.batches == computed, "it is caught up though it has no drafts"


def test_tokens_that_the_model_does_not_have_have_no_drafts() -> None:
    proposer, executor = make_proposer()
    assert propose(proposer, [[3, VOCAB, 4], [3, VOCAB - 1]], [3, 2], most=1)[0] == []
    assert executor.batches == [2]


def test_sequences_that_are_not_asked_about_make_room() -> None:
    texts = make_texts(5, 5)
    proposer, _ = make_proposer(num_blocks=1)
    assert propose(proposer, texts, [6, 0]) == [texts[0][6:10]]
    for _ in range(IDLE_STEPS):
        assert propose(proposer, texts, [0, 6]) == [[]]
    assert propose(proposer, texts, [0, 6]) == [texts[1][6:10]]


def test_a_worker_accepts_all_drafts_of_an_equal_model() -> None:
    runner = make_runner(**SERVED, max_num_batched_tokens=512)
    wanted = [Wanted(prompt=[7, 8, 9, i], num_samples=1 + 2 * (i == 1)) for i in range(3)]
    proposer, _ = make_proposer()
    without, found = Loop(runner), Loop(runner, proposer=proposer)
    expected = without.generate(wanted, num_tokens=36)
    assert found.generate(wanted, num_tokens=36, limit=lambda: MOST) == expected
    assert found.num_steps < without.num_steps / 2
    for seq_id in found.answers:
        proposer.forget(seq_id)
    assert proposer.cache.num_free_rows == 100
