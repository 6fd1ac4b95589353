"""Drives a runner as a scheduler would: prompts in, tokens out, over a block table of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from signalbox_contract.cache_groups import FULL_GROUP, NO_BLOCK, CacheGroup, state_group
from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels.filters import DTYPES, Filters
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.batch.batch import NO_ADAPTER, Batch, BatchOutput
from signalbox_worker.batch.sampling_rows import Penalties, SampleRows, TokenRuns, token_runs
from signalbox_worker.batch.state_runs import Settlement, settlement, state_runs, with_drafts
from signalbox_worker.runner.runner import Runner
from signalbox_worker.sampling import token_constraints
from signalbox_worker.sampling.token_constraints import RuledRows, make_rules

GREEDY = SamplingParams()


@dataclass(slots=True, kw_only=True)
class Generated:
    """A sequence that a test generates."""

    token_ids: list[int]
    blocks: list[int]
    num_computed: int = 0
    branch: int = 0
    adapter: int = NO_ADAPTER
    num_prompt: int = 0
    params: SamplingParams = GREEDY

    def __post_init__(self) -> None:
        self.num_prompt = self.num_prompt or len(self.token_ids)

    @property
    def num_left(self) -> int:
        return len(self.token_ids) - self.num_computed


def make_sequence(
    token_ids: Sequence[int], blocks: Sequence[int], params: SamplingParams = GREEDY, **kw: int
) -> Generated:
    return Generated(token_ids=list(token_ids), blocks=list(blocks), params=params, **kw)


def make_rows(
    params: Sequence[SamplingParams],
    *,
    token_index: Sequence[int],
    branch: Sequence[int] | None = None,
    position: Sequence[int] | None = None,
    suppressed: dict[int, tuple[int, ...]] | None = None,
    tokens: Sequence[Sequence[int]] | None = None,
    num_prompt: Sequence[int] | None = None,
    vocab_size: int = 1 << 20,
) -> SampleRows:
    """`tokens` are those that rules and penalties look back on."""
    count = len(params)
    rows = SampleRows(
        seq_ids=np.arange(count),
        token_index=np.array(token_index, dtype=np.int64),
        branch=np.array(branch or [0] * count, dtype=np.int64),
        position=np.array(position or [1] * count, dtype=np.int64),
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        filters=Filters._make(
            [
                np.array([getattr(p, name) for p in params], dtype=dtype)
                for name, dtype in DTYPES._asdict().items()
            ]
        ),
        seed=np.array([p.seed for p in params], dtype=np.uint64),
        num_logprobs=np.array([-1 if p.num_logprobs is None else p.num_logprobs for p in params]),
    )
    if any(p.logprob_token_ids for p in params):
        rows.logprob_tokens = make_runs(
            {i: p.logprob_token_ids for i, p in enumerate(params)}, count
        )
    if suppressed:
        rows.suppressed = make_runs(suppressed, count)
    if tokens is not None:
        add_history(rows, params, tokens, num_prompt or [0] * count, vocab_size=vocab_size)
    return rows


def make_runs(token_ids: dict[int, tuple[int, ...]], num_rows: int) -> TokenRuns:
    """Builds runs from those of some rows."""
    rows = [row for row, ids in token_ids.items() for _ in ids]
    flat = [token_id for ids in token_ids.values() for token_id in ids]
    return token_runs(np.array(rows, dtype=np.int64), np.array(flat, dtype=np.int64), num_rows)[0]


def add_history(
    rows: SampleRows,
    params: Sequence[SamplingParams],
    tokens: Sequence[Sequence[int]],
    num_prompt: Sequence[int],
    *,
    vocab_size: int,
) -> None:
    """Adds what parameters ask for to rows of sequences with these tokens, as the table does."""
    table = np.zeros((len(tokens), max(map(len, tokens)) + 1), dtype=np.int32)
    for row, ids in enumerate(tokens):
        table[row, : len(ids)] = ids
    owners = np.arange(len(rows))
    rows.position = np.array([len(ids) for ids in tokens])
    rows.penalties = Penalties(
        presence=np.array([p.presence_penalty for p in params], dtype=np.float32),
        frequency=np.array([p.frequency_penalty for p in params], dtype=np.float32),
        repetition=np.array([p.repetition_penalty for p in params], dtype=np.float32),
        num_prompt=np.array(num_prompt),
        owners=owners,
        tokens=table,
    )
    ruled = RuledRows(
        rules=[make_rules(p, vocab_size=vocab_size) for p in params],
        rows=owners,
        is_starved=np.array([p.min_tokens > 0 for p in params], dtype=np.bool_),
        owners=owners,
        position=rows.position,
    )
    rows.suppressed = token_constraints.suppressed(ruled, tokens=table, num_rows=len(rows))
    rows.biases = token_constraints.biases(ruled, num_rows=len(rows))
    masks = [None] * len(ruled.rules)  # no grammars
    rows.allowed = token_constraints.allowed(ruled, grammar_masks=masks, num_rows=len(rows))


def groups_of(runner: Any) -> Sequence[CacheGroup]:
    """Returns the groups of layers of a runner's model, each of which has blocks of its own."""
    groups: Sequence[CacheGroup] = (FULL_GROUP,)
    return runner.executor.footprint.groups if hasattr(runner, "executor") else groups


def num_row_blocks(groups: Sequence[CacheGroup]) -> int:
    """Returns the blocks of a row: one of each group, but all of a state."""
    return sum(group.state_blocks or 1 for group in groups)


def make_batch(
    work: Sequence[tuple[Generated, int]],
    *,
    block_size: int,
    groups: Sequence[CacheGroup] = (FULL_GROUP,),
    num_drafts: int = 0,
) -> Batch:
    """Packs (sequence, tokens to compute); those that compute their last token draw, and behind
    each of as many tokens before it as are drafts.

    A block b of a sequence stands for the blocks [b * n, (b + 1) * n), one of each group, and all
    of the state that is left behind it.
    """
    num_groups = len(groups)
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[list[int]] = []
    starts = [0]
    drawing: list[tuple[Generated, int, int]] = []
    for sequence, count in work:
        span = range(sequence.num_computed, sequence.num_computed + count)
        token_ids += sequence.token_ids[span.start : span.stop]
        positions += span
        slots += [
            [
                block * block_size + p % block_size
                for block in _row(sequence.blocks[p // block_size], groups)
            ]
            for p in span
        ]
        starts.append(len(token_ids))
        if span.stop == len(sequence.token_ids):
            drawing += [(sequence, len(token_ids) - 1 - i, i) for i in range(num_drafts, -1, -1)]
    lens = [sequence.num_computed + count for sequence, count in work]
    width = -(-max(lens) // block_size)
    tables = np.zeros((len(work), width * num_groups), dtype=np.int32)
    for i, (sequence, _) in enumerate(work):
        used = [one for block in sequence.blocks[:width] for one in _row(block, groups)]
        tables[i, : len(used)] = used
    slot_mapping = np.array(slots, dtype=np.int64)
    return Batch(
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slot_mapping=slot_mapping[:, 0] if num_groups == 1 else slot_mapping,
        query_start=np.array(starts, dtype=np.int64),
        context_lens=np.array(lens, dtype=np.int64),
        block_tables=tables,
        rows=make_rows(
            [s.params for s, _, _ in drawing],
            token_index=[index for _, index, _ in drawing],
            branch=[s.branch for s, _, _ in drawing],
            position=[len(s.token_ids) - i for s, _, i in drawing],
        ),
        adapters=_adapters(work),
        states=_states(
            work, tables[:, num_groups - 1 :: num_groups], groups, block_size, num_drafts
        ),
    )


def _row(block: int, groups: Sequence[CacheGroup]) -> range:
    first = block * num_row_blocks(groups)
    return range(first, first + len(groups))


def _states(
    work: Sequence[tuple[Generated, int]],
    heads: Int32Array,
    groups: Sequence[CacheGroup],
    block_size: int,
    num_drafts: int,
) -> StateArrays | None:
    if (group := state_group(groups)) is None:
        return None
    states = state_runs(
        heads,
        _blocks_of_states(heads, group),
        np.array([sequence.num_computed for sequence, _ in work]),
        np.array([count - num_drafts for _, count in work]),
        block_size=block_size,
    )
    return with_drafts(states, np.full(len(work), num_drafts)) if num_drafts else states


def _blocks_of_states(heads: Int32Array, group: CacheGroup) -> Int32Array:
    blocks = np.full((heads.max() + 1, group.state_blocks), NO_BLOCK, dtype=np.int32)
    used = np.unique(heads[heads > 0])
    blocks[used] = used[:, None] + np.arange(group.state_blocks)
    return blocks


def settlement_of(
    batch: Batch, groups: Sequence[CacheGroup], num_kept: Sequence[int], *, block_size: int
) -> Settlement | None:
    """Returns what settles the first of each sequence's drafts: its tokens of the batch but one."""
    group = state_group(groups)
    assert group is not None, "a model with recurrent layers"
    heads = batch.block_tables[:, len(groups) - 1 :: len(groups)]
    num_drafts = np.diff(batch.query_start) - 1
    return settlement(
        heads,
        _blocks_of_states(heads, group),
        batch.context_lens - num_drafts,
        num_drafts,
        np.array(num_kept),
        block_size=block_size,
    )


def _adapters(work: Sequence[tuple[Generated, int]]) -> Int32Array | None:
    of_seqs = [sequence.adapter for sequence, _ in work]
    if set(of_seqs) == {NO_ADAPTER}:
        return None
    return np.repeat(np.array(of_seqs, dtype=np.int32), [count for _, count in work])


@dataclass(slots=True, kw_only=True)
class Driver:
    """Steps sequences through a runner, `chunk` tokens at most for each."""

    runner: Runner
    block_size: int = 16
    chunk: int = 1 << 30
    samples: list[BatchOutput] = field(default_factory=list)

    def step(self, sequences: Sequence[Generated]) -> BatchOutput:
        work = [(s, min(s.num_left, self.chunk)) for s in sequences]
        batch = make_batch(work, block_size=self.block_size, groups=groups_of(self.runner))
        samples = self.runner.execute(batch)
        tokens = iter(samples.token_ids.tolist())
        for sequence, count in work:
            sequence.num_computed += count
            if not sequence.num_left:
                sequence.token_ids.append(next(tokens))
        self.samples.append(samples)
        return samples

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        num_tokens: int,
        params: SamplingParams = GREEDY,
        adapters: Sequence[int] = (),
    ) -> list[list[int]]:
        """Generates for all prompts together; returns what was drawn.

        Args:
            adapters: number of each prompt's adapter; by default none has one.
        """
        blocks_each = -(-(max(map(len, prompts)) + num_tokens) // self.block_size)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(prompts) * blocks_each).reshape(len(prompts), -1)
        numbers = adapters or [NO_ADAPTER] * len(prompts)
        sequences = [
            make_sequence(prompt, blocks.tolist(), params, adapter=number)
            for prompt, blocks, number in zip(prompts, order, numbers, strict=True)
        ]
        while active := [s for s in sequences if len(s.token_ids) < s.num_prompt + num_tokens]:
            self.step(active)
        return [s.token_ids[s.num_prompt :] for s in sequences]
