"""The simulated model says what it should, and stops doing so when blocks are mishandled."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from signalbox_contract.cache_groups import FULL_GROUP, STATE, CacheGroup
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_contract.step import Step, TablePatch
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.runner.loading.byte_tokenizer import (
    END_OF_SEQUENCE,
    END_OF_SEQUENCE_ID,
    tokenizer_files,
)
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_executor import POISON
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.builders import (
    make_config,
    make_mapping,
    make_new,
    make_runner,
    make_step,
    make_table,
    with_moves,
)
from tests.simulated_model import expected_tokens

PROMPT = [5, 6, 7, 8, 9, 10]


def generate(
    runner: SimulatedRunner, table: SequenceTable, *, chunk: int, num_tokens: int, **params: object
) -> list[int]:
    """Runs PROMPT in chunks, then decodes; swaps its blocks to CPU and back after each token."""
    blocks = [9, 2, 11, 5]
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    new = make_new(1, PROMPT, blocks, num_new_tokens=min(chunk, len(PROMPT)), params=sampling)
    step = make_step(new=[new])
    while len(table) == 0 or len(table.token_ids(1)) < len(PROMPT) + num_tokens:
        batch = table.apply(step)
        runner.apply(step)
        table.append_tokens(runner.execute(batch))
        out = make_mapping({block: i for i, block in enumerate(blocks)})
        runner.apply(make_step(swap_out=out))
        left = len(table.token_ids(1)) - int(batch.context_lens[0])
        moved = [(block + 3) % 16 for block in blocks]
        step = make_step(
            running={1: min(chunk, left)},
            patches=[TablePatch(1, 0, moved)],
            swap_in=make_mapping(dict(enumerate(moved))),
        )
        blocks = moved
    return table.token_ids(1)[len(PROMPT) :]


@pytest.mark.parametrize("chunk", [1, 3, 6])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_is_as_expected_whatever_the_chunks_and_blocks(
    chunk: int, temperature: float
) -> None:
    runner = make_runner()
    seed = (1 << 64) - 3
    tokens = generate(
        runner, make_table(runner), chunk=chunk, num_tokens=9, temperature=temperature, seed=seed
    )
    assert tokens == expected_tokens(PROMPT, num_tokens=9, temperature=temperature, seed=seed)


def test_what_is_behind_a_window_does_not_matter_and_what_is_in_it_does() -> None:
    runner = make_runner(groups=(FULL_GROUP, CacheGroup(kind="window", window=3)))
    table = make_table(runner)
    batch = table.apply(make_step(new=[make_new(1, PROMPT, [3, 9, 1, 8])]))
    table.append_tokens(runner.execute(batch))
    batch = table.apply(make_step(2, running={1: 1}))
    (token,) = runner.execute(batch).token_ids.tolist()
    kv = runner.simulation.gpu_kv
    for block, offset, matters in ((9, 3, False), (3, 3, True), (8, 0, True)):
        before = kv[block, offset].copy()
        kv[block, offset] = POISON
        (other,) = runner.execute(batch).token_ids.tolist()
        assert (other != token) is matters
        kv[block, offset] = before


class DropsOneSwap(SimulatedRunner):
    def apply(self, sections: Step) -> int:
        src, dst = sections.block_moves.swap_in
        return super().apply(with_moves(sections, swap_in=BlockMapping(src[1:], dst[1:])))


class WritesOneSlotWrong(SimulatedRunner):
    def execute(self, batch: Batch) -> object:  # type: ignore[override]
        slots = batch.slot_mapping.copy()
        slots[-1] = (slots[-1] + 1) % self.simulation.gpu_kv.size
        return super().execute(replace(batch, slot_mapping=slots))


class ReadsOneBlockWrong(SimulatedRunner):
    def execute(self, batch: Batch) -> object:  # type: ignore[override]
        tables = batch.block_tables.copy()
        tables[0, 0] = (tables[0, 0] + 1) % len(self.simulation.gpu_kv)
        return super().execute(replace(batch, block_tables=tables))


@pytest.mark.parametrize("faulty", [DropsOneSwap, WritesOneSlotWrong, ReadsOneBlockWrong])
def test_a_planted_error_changes_the_output(faulty: type[SimulatedRunner]) -> None:
    runner = faulty(make_config())
    runner.init_cache_engine(num_gpu_blocks=16, num_cpu_blocks=4)
    tokens = generate(runner, make_table(runner), chunk=6, num_tokens=9)
    assert tokens != expected_tokens(PROMPT, num_tokens=9)


def test_another_prefixs_block_changes_the_output() -> None:
    """Equal tokens at equal positions are not enough: a block depends on all before it."""
    runner = make_runner()
    table = make_table(runner)
    other, mine = [1, 1, 1, 1, 7, 7, 7, 7], [2, 2, 2, 2, 7, 7, 7, 7, 9]
    table.append_tokens(runner.execute(table.apply(make_step(new=[make_new(1, other, [0, 1])]))))
    table.append_tokens(runner.execute(table.apply(make_step(new=[make_new(2, mine[:4], [2])]))))
    reuse = make_new(3, mine, [2, 1, 3], num_computed_tokens=8)
    table.append_tokens(runner.execute(table.apply(make_step(new=[reuse]))))
    assert table.token_ids(3)[9:] != expected_tokens(mine, num_tokens=1)


def test_logits_are_of_the_token_and_of_what_was_read() -> None:
    runner = make_runner()
    table = make_table(runner)
    first = make_new(1, PROMPT, [3, 9], returns_logits=True)
    new = [first, make_new(2, PROMPT, [4, 8]), replace(first, seq_id=3, block_table=[5, 7])]
    table.append_tokens(runner.execute(table.apply(make_step(new=new))))
    batch = table.apply(make_step(2, running={1: 1, 2: 1, 3: 1}))

    def logits() -> list[float]:
        samples = runner.execute(batch)
        assert samples.logits is not None
        return samples.logits.tolist()

    mine, none, same = logits()
    assert mine == same
    assert np.isnan(none)
    runner.simulation.gpu_kv[5, 0] += np.uint64(1)
    assert logits()[0] == mine
    assert logits()[2] != mine


def test_branches_are_equal_when_greedy_and_differ_when_not() -> None:
    greedy = [expected_tokens(PROMPT, num_tokens=8, branch=branch) for branch in (0, 1)]
    assert greedy[0] == greedy[1]
    drawn = [
        expected_tokens(PROMPT, num_tokens=8, temperature=1.0, seed=seed, branch=branch)
        for seed in (1, 2)
        for branch in (0, 1)
    ]
    assert len({tuple(tokens) for tokens in [*drawn, greedy[0]]}) == 5


def test_suppressed_tokens_are_passed_over() -> None:
    free = expected_tokens(PROMPT, num_tokens=4)
    params = {"min_tokens": 2, "stop_token_ids": (free[0], free[0] + 1)}
    runner = make_runner()
    tokens = generate(runner, make_table(runner), chunk=6, num_tokens=4, **params)
    assert tokens[0] == (free[0] + 2) % 512
    assert tokens == expected_tokens(PROMPT, num_tokens=4, **params)  # type: ignore[arg-type]


def test_logprobs_agree_with_what_was_drawn() -> None:
    runner = make_runner()
    table = make_table(runner)
    greedy = SamplingParams(num_logprobs=3)
    starved = replace(
        greedy, min_tokens=1, stop_token_ids=tuple(expected_tokens(PROMPT, num_tokens=1))
    )
    new = [
        make_new(1, PROMPT, [0, 1], params=greedy),
        make_new(2, PROMPT, [2, 3], params=starved),
        make_new(3, PROMPT, [4, 5], params=SamplingParams()),
    ]
    samples = runner.execute(table.apply(make_step(new=new)))
    assert [(found.row, found.rank) for found in samples.logprobs] == [(0, 1), (1, 2)]
    for found in samples.logprobs:
        place = found.top_token_ids.index(int(samples.token_ids[found.row]))
        assert found.top_logprobs[place] == found.logprob
        assert found.top_logprobs == sorted(found.top_logprobs, reverse=True)
        assert sum(np.exp(found.top_logprobs)) < 1


def test_a_new_cache_holds_poison() -> None:
    runner = make_runner()
    runner.simulation.gpu_kv[:] = 0
    runner.init_cache_engine(num_gpu_blocks=3, num_cpu_blocks=2)
    assert runner.simulation.gpu_kv.shape == (3, 4)
    assert set(runner.simulation.gpu_kv.flat) | set(runner.simulation.cpu_kv.flat) == {POISON}


def test_a_step_takes_the_time_that_was_configured() -> None:
    runner = make_runner(step_ns=5_000_000, token_ns=1_000_000)
    table = make_table(runner)
    samples = runner.execute(table.apply(make_step(new=[make_new(1, PROMPT, [0, 1])])))
    assert samples.forward_ns >= 11_000_000


@pytest.mark.parametrize(
    "wrong", [{"vocab_size": 258}, {"block_size": 0}, {"num_gpu_blocks": 0}, {"step_ns": -1}]
)
def test_a_configuration_refuses_bad_values(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        SimulatedConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("vocab_size", [259, 512, 5000])
def test_every_token_decodes_and_text_survives(vocab_size: int) -> None:
    files = tokenizer_files(vocab_size=vocab_size, max_model_len=64)
    assert sorted(files) == ["tokenizer.json", "tokenizer_config.json"]
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    assert tokenizer.get_vocab_size() == vocab_size
    assert all(tokenizer.decode([i], skip_special_tokens=False) for i in range(vocab_size))
    text = "Grüße, 世界 \n🙂"
    assert tokenizer.encode(text).ids == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.token_to_id(END_OF_SEQUENCE) == END_OF_SEQUENCE_ID


@pytest.mark.parametrize(
    ("options", "why_not"),
    [
        ({}, None),
        ({"pooling": SIMULATED_POOLING["last"]}, "the model pools"),
        ({"stages": (1, 1)}, "stages begin a step before"),
        ({"groups": (FULL_GROUP, CacheGroup(kind=STATE, state_blocks=2))}, None),
    ],
)
def test_drafts_are_announced_where_they_are_computed(
    options: dict[str, Any], why_not: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = make_runner(speculation=SpeculationConfig(num_tokens=3), **options)
        assert runner.profile().max_draft_tokens == (0 if why_not else 3)
    assert caplog.text.count(why_not or "at most 3 drafts") == 1
    assert ("no drafts" in caplog.text) == (why_not is not None)
