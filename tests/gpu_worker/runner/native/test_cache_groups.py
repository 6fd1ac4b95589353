"""Groups of the layers of native models, and that what is behind a window is never read."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signalbox_contract.cache_groups import NO_BLOCK, CacheGroup
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.requests.sequence_group import Sequence
from signalbox_worker.device.stage_layers import all_layers
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.models.decoder_config import LayerHeads
from signalbox_worker.runner.native.kv_places import cache_groups, kv_places
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels
from tests.scheduler_svc.make import make_request

skip_without_native_kernels()


def make_config(
    windows: list[int | None], *, heads: dict[int, LayerHeads] | None = None, **fields: Any
) -> Any:
    own = heads or {}
    return SimpleNamespace(
        num_layers=len(windows),
        sliding_windows=tuple(windows),
        is_bidirectional=False,
        kv_layer=lambda index: index,
        heads_of=lambda index: own.get(index, LayerHeads(4, 2, 64)),
        **fields,
    )


def every_sixth(num_layers: int) -> list[int | None]:
    return [None if index % 6 == 5 else 512 for index in range(num_layers)]


@pytest.mark.parametrize(
    ("num_layers", "num_groups", "most"),
    [
        (24, 6, 4),
        (26, 7, 4),
        (34, 7, 5),
        (48, 6, 8),
        (62, 13, 5),  # tens would waste 11 %
    ],
)
def test_layers_are_divided_into_few_groups_that_waste_little(
    num_layers: int, num_groups: int, most: int
) -> None:
    config = make_config(every_sixth(num_layers))
    groups = cache_groups(config, max_model_len=8192)
    assert (len(groups), max(len(group.layers) for group in groups)) == (num_groups, most)
    assert sorted(index for group in groups for index in group.layers) == list(range(num_layers))
    for group in groups:
        assert {config.sliding_windows[index] or 0 for index in group.layers} == {group.window}
    places = kv_places(config, all_layers(num_layers), groups)
    assert places.num_layers == most
    taken = {(places.group_of[index], places.first[index]) for index in range(num_layers)}
    assert len(taken) == num_layers
    assert num_layers >= 0.9 * len(groups) * places.num_layers


def test_layers_of_other_heads_take_as_many_units_as_they_have() -> None:
    wide = {index: LayerHeads(8, 1, 512) for index in (5, 11)}
    config = make_config([None if i in wide else 100 for i in range(12)], heads=wide)
    groups = cache_groups(config, max_model_len=8192)
    places = kv_places(config, all_layers(12), groups)
    ends = {
        index: (places.group_of[index], places.first[index], 8 if index in wide else 2)
        for index in range(12)
    }
    slots = [(g, at) for g, first, count in ends.values() for at in range(first, first + count)]
    assert len(set(slots)) == len(slots)
    assert max(at for _, at in slots) < places.num_layers
    assert len(slots) >= 0.9 * len(groups) * places.num_layers


@pytest.mark.parametrize(
    "config",
    [
        make_config([None] * 4),
        make_config([8192] * 4),
        make_config([]),
    ],
)
def test_a_model_that_sees_all_has_one_full_group(config: Any) -> None:
    config.num_layers = 4
    (group,) = cache_groups(config, max_model_len=8192)
    assert group == CacheGroup()


def test_a_model_of_windows_alone_has_one_group() -> None:
    (group,) = cache_groups(make_config([100] * 3), max_model_len=8192)
    assert group == CacheGroup(kind="window", window=100, layers=(0, 1, 2))


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

    def __init__(self, runner: Any, *, poisons: bool) -> None:
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
        )
        self.num_freed = 0

    def generate(self, prompt: list[int], *, num_tokens: int, chunk: int) -> list[int]:
        """Computes a prompt in chunks and then tokens one by one."""
        group = make_request(prompt, max_tokens=num_tokens)
        (seq,) = group.sequences
        self.blocks.start(seq, self.blocks.find_prefix(seq))
        for number in range(1, 1000):
            if len(seq.output_token_ids) == num_tokens:
                break
            count = min(chunk, seq.num_tokens - seq.num_computed_tokens)
            replaced = self.blocks.append_slots(seq, count)
            self._step(seq, number, count, replaced)
            seq.num_computed_tokens += count
            self.blocks.cache_blocks(seq)
            if self._poisons:
                free = sorted(set(range(self.blocks.gpu.num_blocks)) - set(held(seq.block_table)))
                self.runner.pools.gpu_pool[free] = 255  # NaN
            self.num_freed = seq.block_table.count(NO_BLOCK)
        self.blocks.check([seq])
        return seq.output_token_ids

    def _step(self, seq: Sequence, number: int, count: int, replaced: range) -> None:
        """Lets the runner compute a step; the sequence is new to it in the first."""
        start = replaced.start if replaced else seq.num_sent_blocks
        patches = [TablePatch(seq.seq_id, start, tuple(seq.block_table[start:]))]
        step = Step(
            epoch=1,
            step_id=number,
            new=() if number > 1 else (self._new(seq, count),),
            running_seq_ids=int64s([seq.seq_id] if number > 1 else []),
            running_num_new_tokens=int32s([count] if number > 1 else []),
            patches=patches if number > 1 and start < len(seq.block_table) else (),
        )
        seq.num_sent_blocks = len(seq.block_table)
        batch = self.table.apply(step)
        result = self.table.append_tokens(self.runner.execute(batch))
        assert not result.failures
        seq.output_token_ids += result.token_ids.tolist()

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
    kept, poisoned = (
        Loop(make_runner(path, cpu_backend="native", block_size=16), poisons=poisons)
        for poisons in (False, True)
    )
    assert [group.window for group in kept.groups] == [0, 21, 21]
    expected = kept.generate(prompt, num_tokens=40, chunk=chunk)
    assert poisoned.generate(prompt, num_tokens=40, chunk=chunk) == expected
    assert poisoned.num_freed >= 2 * 5
    assert Driver(runner=kept.runner).generate([prompt], num_tokens=40) == [expected]
