"""What steps with drafts must leave: what single steps leave."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.cache_groups import CacheGroup, num_token_groups
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.runner.runner import Runner
from tests.gpu_worker.generation import (
    Generated,
    make_batch,
    make_sequence,
    num_row_blocks,
    settlement_of,
)
from tests.gpu_worker.model_runners import make_prompts
from tests.gpu_worker.runner.executors.native_models import content_of
from tests.gpu_worker.tiny_models import VOCAB

NUM_DRAFTS = 5
(PROMPT,) = make_prompts(13)  # a block ends within the drafts


@dataclass
class Steps:
    """Computes sequences, and reads what a runner has kept of them."""

    runner: Runner
    groups: Sequence[CacheGroup]
    pool: NDArray[np.uint8]
    """Blocks of which the content is read."""

    def content(self, one: Generated) -> bytes:
        size = num_row_blocks(self.groups)
        rows = self.pool[: len(self.pool) // size * size].reshape(-1, size, self.pool.shape[1])
        return content_of(one, rows, num_token_groups(self.groups))

    def draw(self, *sequences: Generated) -> None:
        """Computes all tokens of sequences, and appends what follows."""
        for one, (token_id,) in zip(sequences, self._run(sequences), strict=True):
            one.num_computed = len(one.token_ids)
            one.token_ids.append(int(token_id))

    def draw_behind(self, sequences: Sequence[Generated], stay: Sequence[int]) -> list[Int32Array]:
        """Computes sequences that end with drafts, and settles those that stay; returns what is
        drawn behind each."""
        drawn = self._run(sequences, NUM_DRAFTS)
        settlement = settlement_of(self._batch, self.groups, stay, block_size=16)
        if settlement is not None:
            self.runner.settle(settlement)
        for one, kept in zip(sequences, stay, strict=True):
            one.num_computed += 1 + kept
        return drawn

    def _run(self, sequences: Sequence[Generated], num_drafts: int = 0) -> list[Int32Array]:
        work = [(one, one.num_left) for one in sequences]
        self._batch = make_batch(work, block_size=16, groups=self.groups, num_drafts=num_drafts)
        return np.split(self.runner.execute(self._batch).token_ids, len(sequences))


def assert_settled(steps: Steps) -> None:
    """Checks tokens, K and V, and states, however many of a sequence's drafts stay, beside one of
    whose drafts none does."""
    single, contents = make_sequence(PROMPT, range(1, 4)), []
    for _ in range(NUM_DRAFTS + 3):
        steps.draw(single)
        contents.append(steps.content(single))
    drawn = single.token_ids[len(PROMPT) :]
    wrong = [(token - 2) % (VOCAB - 3) + 3 for token in drawn]
    for num_kept in range(NUM_DRAFTS + 1):
        run, other = make_sequence(PROMPT, range(4, 7)), make_sequence(PROMPT, range(7, 10))
        steps.draw(other, run)
        run.token_ids += drawn[1 : 1 + num_kept] + wrong[1 + num_kept : 1 + NUM_DRAFTS]
        other.token_ids += wrong[1 : 1 + NUM_DRAFTS]
        of_other, of_run = steps.draw_behind([other, run], [0, num_kept])
        assert of_other[0] == drawn[1]
        assert of_run[: 1 + num_kept].tolist() == drawn[1 : 2 + num_kept]
        for one, kept in ((run, num_kept), (other, 0)):
            one.token_ids = PROMPT + drawn[: 2 + kept]
            assert steps.content(one) == contents[1 + kept]
        steps.draw(other, run)
        assert run.token_ids[-1] == drawn[2 + num_kept]
        assert steps.content(run) == contents[2 + num_kept]
