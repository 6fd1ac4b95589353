"""Blocks behind a window, as a native runner and the scheduler's block manager keep them."""

import random
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.drafts import DraftLimits
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.requests.sequence_group import Sequence
from signalbox_worker.drafts.proposer import NO_PROPOSER, Proposer
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.draft_loops import MOST, Oracle, spoilt
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.tiny_models import VOCAB, make_model
from tests.native_kernels import skip_without_native_kernels
from tests.scheduler_svc.make import make_request

skip_without_native_kernels()


def make_sliding(tmp_path: Path) -> Path:
    fields = {
        "sliding_window": 21,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 6,
        "max_position_embeddings": 256,
    }
    make_model(tmp_path, "gemma3", **fields)
    return tmp_path


class Loop:
    """A sequence of a runner, its blocks kept as the scheduler keeps them; what is free is NaN."""

    def __init__(self, runner: Any, *, poisons: bool, proposer: Proposer = NO_PROPOSER) -> None:
        self.runner, self._poisons = runner, poisons
        footprint = runner.executor.footprint
        self.groups = footprint.groups
        num_blocks = len(runner.pools.gpu_pool)
        capacity = WorkerCapacity(
            block_size=footprint.block_size,
            num_gpu_blocks=num_blocks,
            num_cpu_blocks=0,
            block_bytes=footprint.block_bytes,
            max_num_seqs=4,
            max_num_batched_tokens=256,
            groups=self.groups,
            max_draft_tokens=MOST,
        )
        shape = CacheShape(
            block_size=16, num_gpu_blocks=num_blocks, max_model_len=256, groups=self.groups
        )
        self.blocks = BlockSpaceManager(shape, costs=CostModel())
        self.table = SequenceTable(
            model=runner.model,
            capacity=capacity,
            num_gpu_blocks=num_blocks,
            grammars=Grammars(runner.model, tokenizer_json=b""),
            proposer=proposer,
        )
        self._most = 0 if proposer is NO_PROPOSER else MOST
        self.num_freed = self.num_steps = 0

    def generate(self, prompt: list[int], *, num_tokens: int, chunk: int) -> list[int]:
        """Computes a prompt in chunks and then tokens one by one."""
        group = make_request(prompt, max_tokens=num_tokens)
        (seq,) = group.sequences
        self.blocks.start(seq, self.blocks.find_prefix(seq))
        for number in range(1, 1000):
            if len(seq.output_token_ids) == num_tokens:
                break
            self.num_steps = number
            count = min(chunk, seq.num_tokens - seq.num_computed_tokens)
            most = min(self._most, num_tokens - len(seq.output_token_ids) - 1)
            most = most if seq.num_computed_tokens + 1 == seq.num_tokens else 0
            replaced = self.blocks.append_slots(seq, count + most)
            num_drawn = self._step(seq, number, count, replaced, most)
            seq.num_computed_tokens += count + max(0, num_drawn - 1)
            self.blocks.cache_blocks(seq)
            if self._poisons:
                free = sorted(set(range(self.blocks.gpu.num_blocks)) - set(held(seq.block_table)))
                self.runner.pools.gpu_pool[free] = 255  # NaN
            self.num_freed = seq.block_table.count(NO_BLOCK)
        self.blocks.check([seq])
        return seq.output_token_ids

    def _step(self, seq: Sequence, number: int, count: int, replaced: range, most: int) -> int:
        """Lets the runner compute a step with drafts; the sequence is new to it in the first.

        Returns the number of tokens drawn.
        """
        start = replaced.start if replaced else seq.num_sent_blocks
        patches = [TablePatch(seq.seq_id, start, tuple(seq.block_table[start:]))]
        step = Step(
            epoch=1,
            step_id=number,
            new=() if number > 1 else (self._new(seq, count),),
            running_seq_ids=int64s([seq.seq_id] if number > 1 else []),
            running_num_new_tokens=int32s([count] if number > 1 else []),
            patches=patches if number > 1 and start < len(seq.block_table) else (),
            draft_limits=DraftLimits(int64s([seq.seq_id]), int32s([most])) if most else None,
        )
        seq.num_sent_blocks = len(seq.block_table)
        batch = self.table.apply(step)
        result = self.table.append_tokens(self.runner.execute(batch))
        assert not result.failures
        seq.output_token_ids += result.token_ids.tolist()
        return len(result.token_ids)

    def _new(self, seq: Sequence, count: int) -> NewSequence:
        return NewSequence(
            seq_id=seq.seq_id,
            branch=0,
            token_ids=seq.token_ids,
            num_prompt_tokens=seq.num_tokens,
            num_computed_tokens=0,
            num_new_tokens=count,
            block_table=tuple(seq.block_table),
            num_samples=1,
            params=SamplingParams(),
        )


@pytest.mark.parametrize("chunk", [1 << 20, 50, 7])
def test_blocks_behind_a_window_may_hold_nan(tmp_path: Path, chunk: int) -> None:
    path = make_sliding(tmp_path)
    (prompt,) = make_prompts(90)
    kept, poisoned = (Loop(load(path), poisons=poisons) for poisons in (False, True))
    assert [group.window for group in kept.groups] == [0, 21, 21]
    expected = kept.generate(prompt, num_tokens=40, chunk=chunk)
    assert poisoned.generate(prompt, num_tokens=40, chunk=chunk) == expected
    assert poisoned.num_freed >= 2 * 5
    assert Driver(runner=kept.runner).generate([prompt], num_tokens=40) == [expected]


def test_runs_of_drafts_keep_the_blocks_that_a_window_needs(tmp_path: Path) -> None:
    path = make_sliding(tmp_path)
    (prompt,) = make_prompts(90)
    without = Loop(load(path), poisons=False)
    expected = without.generate(prompt, num_tokens=60, chunk=50)
    texts = defaultdict(lambda: [*prompt, *expected])
    for spoil in (list, spoilt(random.Random(6), VOCAB)):
        found = Loop(load(path), poisons=True, proposer=Oracle(texts, spoil))
        assert found.generate(prompt, num_tokens=60, chunk=50) == expected
        assert found.num_steps < without.num_steps
        assert found.num_freed >= 2 * 5


def load(path: Path) -> Any:
    return make_runner(path, cpu_backend="native", block_size=16)
