"""Drives a runner as a scheduler would: prompts in, tokens out, over a block table of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_worker.runner import ModelRunner
from gpu_worker.step import Batch, SampleRows, Samples, SamplingParams

GREEDY = SamplingParams()


@dataclass(slots=True, kw_only=True)
class Generated:
    """A sequence that a test generates."""

    token_ids: list[int]
    blocks: list[int]
    num_computed: int = 0
    branch: int = 0
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
) -> SampleRows:
    count = len(params)
    return SampleRows(
        seq_ids=np.arange(count),
        token_index=np.array(token_index, dtype=np.int64),
        branch=np.array(branch or [0] * count, dtype=np.int64),
        position=np.array(position or [1] * count, dtype=np.int64),
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        top_p=np.array([p.top_p for p in params], dtype=np.float32),
        top_k=np.array([p.top_k for p in params], dtype=np.int64),
        min_p=np.array([p.min_p for p in params], dtype=np.float32),
        seed=np.array([p.seed for p in params], dtype=np.uint64),
        suppressed=suppressed or {},
        num_logprobs={
            i: p.num_logprobs for i, p in enumerate(params) if p.num_logprobs is not None
        },
    )


def make_batch(work: Sequence[tuple[Generated, int]], *, block_size: int) -> Batch:
    """Packs (sequence, tokens to compute); whoever computes its last token draws."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    drawing: list[tuple[Generated, int]] = []
    for sequence, count in work:
        span = range(sequence.num_computed, sequence.num_computed + count)
        token_ids += sequence.token_ids[span.start : span.stop]
        positions += span
        slots += [sequence.blocks[p // block_size] * block_size + p % block_size for p in span]
        starts.append(len(token_ids))
        if span.stop == len(sequence.token_ids):
            drawing.append((sequence, len(token_ids) - 1))
    lens = [sequence.num_computed + count for sequence, count in work]
    width = -(-max(lens) // block_size)
    tables = np.zeros((len(work), width), dtype=np.int32)
    for i, (sequence, _) in enumerate(work):
        used = sequence.blocks[:width]
        tables[i, : len(used)] = used
    return Batch(
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slot_mapping=np.array(slots, dtype=np.int64),
        query_start=np.array(starts, dtype=np.int64),
        context_lens=np.array(lens, dtype=np.int64),
        block_tables=tables,
        rows=make_rows(
            [s.params for s, _ in drawing],
            token_index=[index for _, index in drawing],
            branch=[s.branch for s, _ in drawing],
            position=[len(s.token_ids) for s, _ in drawing],
        ),
    )


@dataclass(slots=True, kw_only=True)
class Driver:
    """Steps sequences through a runner, `chunk` tokens at most for each."""

    runner: ModelRunner
    block_size: int = 16
    chunk: int = 1 << 30
    samples: list[Samples] = field(default_factory=list)

    def step(self, sequences: Sequence[Generated]) -> Samples:
        work = [(s, min(s.num_left, self.chunk)) for s in sequences]
        samples = self.runner.execute(make_batch(work, block_size=self.block_size))
        tokens = iter(samples.token_ids.tolist())
        for sequence, count in work:
            sequence.num_computed += count
            if not sequence.num_left:
                sequence.token_ids.append(next(tokens))
        self.samples.append(samples)
        return samples

    def generate(
        self, prompts: Sequence[Sequence[int]], *, num_tokens: int, params: SamplingParams = GREEDY
    ) -> list[list[int]]:
        """Generates for all prompts together; returns what was drawn."""
        blocks_each = -(-(max(map(len, prompts)) + num_tokens) // self.block_size)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(prompts) * blocks_each).reshape(len(prompts), -1)
        sequences = [
            make_sequence(p, b.tolist(), params) for p, b in zip(prompts, order, strict=True)
        ]
        while active := [s for s in sequences if len(s.token_ids) < s.num_prompt + num_tokens]:
            self.step(active)
        return [s.token_ids[s.num_prompt :] for s in sequences]
