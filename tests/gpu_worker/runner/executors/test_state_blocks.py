"""States of recurrent layers in blocks of the pool, as tables name them: continued, left behind,
begun with and copied. All blocks that nothing names are NaN before each step."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from signalbox_contract.cache_groups import NO_BLOCK, state_group
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_worker.batch.sequence_failures import STATE_LOST
from signalbox_worker.lease.lease import execute_batch
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.lease.token_limit import TokenLimit
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import WHOLE, make_prompts, make_runner
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

SIZE = 16
(PROMPT,) = make_prompts(90)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model whose state takes several blocks, the last in part."""
    kinds = ["conv", "full_attention", *["conv"] * 7]
    fields = {"layer_types": kinds, "num_hidden_layers": len(kinds), "hidden_size": 96}
    make_model(tmp_path, "lfm2", head_dim=16, num_attention_heads=2, **fields)
    return tmp_path


@dataclass
class Tracked:
    """A sequence, and what the test sends of it."""

    seq_id: int
    token_ids: list[int]
    table: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_sent: int = 0


class Loop:
    """Sends steps to a runner, with tables of its own; keeps what no table names NaN."""

    def __init__(self, path: Path, *, num_threads: int = 1) -> None:
        self.runner: Any = make_runner(path, block_size=SIZE, num_threads=num_threads)
        footprint = self.runner.executor.footprint
        group = state_group(footprint.groups)
        assert group is not None and len(footprint.groups) == 2
        self.state_blocks = group.state_blocks
        num_blocks = len(self.runner.pools.gpu_pool)
        capacity = WorkerCapacity(
            block_size=SIZE,
            num_gpu_blocks=num_blocks,
            num_cpu_blocks=0,
            block_bytes=footprint.block_bytes,
            max_num_seqs=4,
            max_num_batched_tokens=256,
            groups=footprint.groups,
        )
        self.table = SequenceTable(
            model=self.runner.model,
            capacity=capacity,
            num_gpu_blocks=num_blocks,
            grammars=Grammars(self.runner.model, tokenizer_json=b""),
        )
        self.free = np.random.default_rng(3).permutation(num_blocks).tolist()
        self._states: dict[int, tuple[int, ...]] = {}
        self._sent: set[int] = set()
        self._written: set[int] = set()
        self._num_steps = 0
        self.known: dict[int, Tracked] = {}

    def take(self) -> int:
        """Returns the head of a new state."""
        blocks = tuple(self.free.pop() for _ in range(self.state_blocks))
        self._states[blocks[0]] = blocks
        return blocks[0]

    def begin(self, seq_id: int, token_ids: Sequence[int]) -> Tracked:
        self.known[seq_id] = Tracked(seq_id, list(token_ids))
        return self.known[seq_id]

    def extend(self, one: Tracked, end: int, *, leaves: Sequence[int] = ()) -> None:
        """Adds rows for tokens up to `end`: the sequence goes on in its last state, or in a new
        one behind each row of `leaves`, whose state stays."""
        first, head = len(one.table) // 2, one.table[-1] if one.table else self.take()
        num_rows = -(-end // SIZE)
        for row in range(first, num_rows):
            if row - 1 in leaves:
                head = self.take()
            is_named = row in leaves or row == num_rows - 1
            one.table += [self.free.pop(), head if is_named else NO_BLOCK]

    def run(self, work: Sequence[tuple[Tracked, int]], **sections: Any) -> None:
        """Computes a number of tokens of sequences, whose tables have the rows for them."""
        self._poison()
        new = [(one, n) for one, n in work if not one.num_sent]
        old = [(one, n) for one, n in work if one.num_sent]
        named = {head for one, _ in work for head in one.table[1::2] if head != NO_BLOCK}
        new_states = sorted(named & self._states.keys() - self._sent)
        sections.setdefault("states", [self._states[head] for head in new_states])
        self._num_steps += 1
        step = Step(
            epoch=1,
            step_id=self._num_steps,
            new=[_new(one, count) for one, count in new],
            running_seq_ids=int64s([one.seq_id for one, _ in old]),
            running_num_new_tokens=int32s([count for _, count in old]),
            patches=[TablePatch(one.seq_id, 0, tuple(one.table)) for one, _ in old],
            **sections,
        )
        result = self.table.append_tokens(self.runner.execute(self.table.apply(step)))
        assert not result.failures
        self._sent |= named
        self._written |= named
        for one, count in work:
            one.num_computed, one.num_sent = one.num_computed + count, len(one.table)
            last = one.table[-1]
            one.table[1:-1:2] = [NO_BLOCK if head == last else head for head in one.table[1:-1:2]]
        drawn = zip(result.seq_ids.tolist(), result.token_ids.tolist(), strict=True)
        for seq_id, token_id in drawn:
            self.known[seq_id].token_ids.append(token_id)

    def generate(self, one: Tracked, num_tokens: int, *, chunk: int = WHOLE) -> list[int]:
        """Computes what is left of a prompt in chunks, and new tokens; returns these."""
        num_known = len(one.token_ids)
        while len(one.token_ids) < num_known + num_tokens:
            count = min(chunk, len(one.token_ids) - one.num_computed)
            self.extend(one, one.num_computed + count)
            self.run([(one, count)])
        return one.token_ids[num_known:]

    def copy(self, head: int) -> int:
        """Returns a copy of a state, made as forks make them."""
        target = self.take()
        self._written.add(target)
        pool = self.runner.pools.gpu_pool
        for source, to in zip(self._states[head], self._states[target], strict=True):
            pool[to] = pool[source]
        return target

    def state_of(self, one: Tracked) -> tuple[int, ...]:
        return self._states[one.table[-1]]

    def content(self, head: int) -> bytes:
        found: bytes = self.runner.pools.gpu_pool[list(self._states[head])].tobytes()
        return found

    def _poison(self) -> None:
        heads = {head for one in self.known.values() for head in one.table[1::2]} - {NO_BLOCK}
        used = {block for one in self.known.values() for block in one.table[::2]}
        used |= {block for head in heads for block in self._states.get(head, ())}
        fresh = {block for head in heads - self._written for block in self._states.get(head, ())}
        free = sorted(set(range(len(self.runner.pools.gpu_pool))) - (used - fresh))
        self.runner.pools.gpu_pool[free] = 255  # NaN


def _new(one: Tracked, count: int) -> NewSequence:
    return NewSequence(
        seq_id=one.seq_id,
        branch=0,
        token_ids=one.token_ids,
        num_prompt_tokens=len(one.token_ids),
        num_computed_tokens=one.num_computed,
        num_new_tokens=count,
        block_table=tuple(one.table),
        num_samples=1,
        params=SamplingParams(),
    )


def expected_tokens(path: Path, num_tokens: int) -> list[int]:
    """Those that follow the prompt, of a runner whose every row has a state of its own."""
    (tokens,) = Driver(runner=make_runner(path, block_size=SIZE)).generate(
        [PROMPT], num_tokens=num_tokens
    )
    return tokens


@pytest.mark.parametrize("chunk", [WHOLE, 50, 32, 7, 1])
def test_a_state_is_continued_in_place(path: Path, chunk: int) -> None:
    loop = Loop(path, num_threads=3)
    assert loop.state_blocks > 1
    one = loop.begin(1, PROMPT)
    assert loop.generate(one, 40, chunk=chunk) == expected_tokens(path, 40)
    assert len({*one.table[1::2]} - {NO_BLOCK}) == 1


@pytest.mark.parametrize("chunk", [WHOLE, 16, 7])
def test_a_prefix_is_found_where_a_state_was_left(path: Path, chunk: int) -> None:
    """The sequence that left it goes on in another, and changes it no more."""
    loop, expected = Loop(path), expected_tokens(path, 20)
    one = loop.begin(1, PROMPT)
    loop.extend(one, 90, leaves=[2])
    loop.run([(one, 90)])
    assert one.token_ids[90:] + loop.generate(one, 19) == expected
    for seq_id in (2, 3):
        found = loop.begin(seq_id, PROMPT)
        found.table, found.num_computed = one.table[:6], 48
        loop.extend(found, 48 + min(chunk, 42), leaves=[2])
        assert loop.generate(found, 20, chunk=min(chunk, 42)) == expected


def test_a_copied_state_is_that_of_a_fork(path: Path) -> None:
    loop, expected = Loop(path), expected_tokens(path, 20)
    parent = loop.begin(1, PROMPT)
    assert loop.generate(parent, 1) == expected[:1]
    child = loop.begin(2, parent.token_ids)
    child.table, child.num_computed = parent.table.copy(), 90
    pool = loop.runner.pools.gpu_pool
    pool[shared := loop.free.pop()] = pool[parent.table[-2]]
    child.table[-2:] = shared, loop.copy(parent.table[-1])
    child.num_sent = len(child.table)
    other = (expected[0] + 1) % 90 + 3
    forks = [Fork(parent=1, child=2, branch=1, token_id=other)]
    child.token_ids[-1] = other
    loop.run([(parent, 1), (child, 1)], forks=forks)
    assert parent.token_ids[90:] + loop.generate(parent, 18) == expected
    alone = Loop(path)
    assert child.token_ids[91:] == alone.generate(alone.begin(1, [*PROMPT, other]), 1)


def test_sequences_of_a_step_read_one_state_and_leave_several(path: Path) -> None:
    loop, expected = Loop(path), expected_tokens(path, 8)
    one = loop.begin(1, PROMPT)
    loop.extend(one, 32, leaves=[1])
    loop.run([(one, 32)])
    kept = one.table.copy()
    others = [loop.begin(seq_id, PROMPT) for seq_id in (2, 3)]
    for other in others:
        other.table, other.num_computed = kept.copy(), 32
    work = [one, *others]
    for each, count in zip(work, (7, 58, 16), strict=True):
        loop.extend(each, 32 + count, leaves=[1, 3])
    loop.run([(one, 7), (others[0], 58), (others[1], 16)])
    left = {head for each in work for head in each.table[1::2]} - {NO_BLOCK}
    assert len(left) == 1 + 1 + 2 + 1  # the one that is read, and what each has left
    for each in work:
        rest = each.token_ids[90:]
        assert rest + loop.generate(each, 8 - len(rest)) == expected


def test_a_state_that_a_sequence_leaves_within_a_row_stays_as_it_is(path: Path) -> None:
    loop, expected = Loop(path), expected_tokens(path, 8)
    one = loop.begin(1, PROMPT)
    loop.extend(one, 40)
    loop.run([(one, 40)])
    kept = loop.content(one.table[-1])
    loop.extend(one, 70, leaves=[2])
    loop.run([(one, 30)])
    assert loop.content(one.table[2 * 2 + 1]) == kept
    assert loop.generate(one, 8) == expected


def test_states_that_are_not_known_are_refused_and_nothing_changes(path: Path) -> None:
    loop = Loop(path)
    one = loop.begin(1, PROMPT)
    loop.extend(one, 20)
    head = one.table[-1]
    for table in ([*one.table[:-1], NO_BLOCK], [*one.table[:-1], one.table[0]]):
        one.table = table
        with pytest.raises(InvalidArgument, match="states whose blocks are known"):
            loop.run([(one, 20)])
    one.table[-1] = head
    with pytest.raises(InvalidArgument, match="distinct blocks"):
        loop.run([(one, 20)], states=[[head] * loop.state_blocks])
    blocks = loop.free[: loop.state_blocks - 1]
    named = [head, *blocks]
    for states in ([named, []], [named, [head, *reversed(blocks)]]):
        with pytest.raises(InvalidArgument, match=r"states\.blocks"):
            loop.run([(one, 20)], states=states)
    expected = expected_tokens(path, 5)
    assert loop.generate(one, 2) == expected[:2]
    with pytest.raises(InvalidArgument, match="known and not computed"):
        loop.run([(one, 2)], states=[named])
    assert loop.generate(one, 3) == expected[2:]


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"num_prompt_logprobs": 1}])
def test_a_step_that_has_no_memory_to_draw_is_not_computed_again(
    path: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its states have changed, so that its sequences are computed from their last snapshots."""
    loop, sampler = Loop(path), Mock(side_effect=MemoryError("no memory to draw from logits"))
    sampler.logprobs = sampler
    monkeypatch.setattr(loop.runner.executor, "sampler", sampler)
    one = loop.begin(1, PROMPT)
    loop.extend(one, 90)
    new = replace(_new(one, 90), params=SamplingParams(**params))
    step = Step(epoch=1, step_id=1, new=[new], states=[loop.state_of(one)])
    samples = execute_batch(loop.runner, loop.table.apply(step), TokenLimit(256))
    assert samples.failed_seqs == {0: STATE_LOST}
    assert sampler.call_count == 1
