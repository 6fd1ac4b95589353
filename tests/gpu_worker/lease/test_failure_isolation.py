"""Steps that fail as a whole: the culprit ends alone, and the others draw what they would have."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox_contract.cache_groups import FULL_GROUP, STATE, CacheGroup
from signalbox_contract.errors import Code
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.step import NewSequence, Step
from signalbox_contract.step_result import StepResult
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.lease.failure_isolation import KERNEL_RAISED, NO_MEMORY
from signalbox_worker.lease.lease import execute_batch
from signalbox_worker.lease.token_limit import STEPS_TO_RETRY, TokenLimit
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.builders import make_config, make_new, make_step, make_table
from tests.gpu_worker.draft_loops import MOST, Loop, Oracle, Wanted
from tests.gpu_worker.generation import make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.rounding import LOGITS

POISON = 255
Fault = Callable[[Batch], None]


class Planted:
    """A runner whose steps fail as `fault` says, after half of them has been computed."""

    def __init__(self, runner: Runner, fault: Fault) -> None:
        self._runner = runner
        self._fault = fault
        self.sizes: list[int] = []

    def execute(self, batch: Batch) -> BatchOutput:
        self.sizes.append(len(batch.query_start) - 1)
        samples = self._runner.execute(batch)
        self._fault(batch)
        return samples

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)


def on_poison(error: type[Exception]) -> Fault:
    def fault(batch: Batch) -> None:
        if (batch.token_ids == POISON).any():
            raise error("illegal instruction")

    return fault


def hold_at_most(num_tokens: int) -> Fault:
    def fault(batch: Batch) -> None:
        if len(batch.token_ids) > num_tokens:
            raise MemoryError(f"{len(batch.token_ids)} tokens")

    return fault


def spare(_: Batch) -> None:
    """No fault."""


def make_sequences(*, seed: int, poisoned: set[int]) -> list[NewSequence]:
    """Whole prompts, chunks of them, branches, log probabilities of both kinds."""
    rng = random.Random(seed)
    sequences = []
    for seq_id in range(13):
        prompt = [rng.randrange(1, 200) for _ in range(rng.randrange(2, 20))]
        if seq_id in poisoned:
            prompt[0] = POISON
        sampling = SamplingParams(
            temperature=float(seq_id % 2),
            seed=seq_id,
            num_logprobs=rng.choice([None, 2]),
            num_prompt_logprobs=rng.choice([None, 1]),
            min_tokens=rng.choice([0, 4]),
            stop_token_ids=(rng.randrange(512), 7),
        )
        is_chunk = seq_id % 5 == 4
        sequences.append(
            make_new(
                seq_id,
                prompt,
                list(range(5 * seq_id, 5 * seq_id + 5)),
                num_new_tokens=len(prompt) - is_chunk,
                num_samples=1 if is_chunk else rng.choice([1, 3]),
                params=sampling,
                returns_logits=seq_id % 3 != 1,
            )
        )
    return sequences


def run(
    step: Step, fault: Fault, limit: TokenLimit | None = None, **options: Any
) -> tuple[StepResult, list[int], SimulatedRunner]:
    config = make_config(num_gpu_blocks=80, max_num_seqs=16, max_num_batched_tokens=512, **options)
    runner = SimulatedRunner(config)
    runner.init_cache_engine(num_gpu_blocks=80, num_cpu_blocks=4)
    planted = Planted(runner, fault)
    table = make_table(runner)
    batch = table.apply(step)
    samples = execute_batch(planted, batch, limit or TokenLimit(512))  # type: ignore[arg-type]
    outcome = table.append_tokens(samples)
    table.check()
    return outcome, planted.sizes, runner


def draws(outcome: StepResult, *, without: set[int]) -> list[object]:
    """What was drawn and reported, row by row, of the sequences that are not named."""
    reported, logits = outcome.logprobs, outcome.draw_logits
    bits = logits.array().view(np.uint32).tolist() if logits is not None else []
    rows = zip(outcome.seq_ids.tolist(), outcome.token_ids.tolist(), bits, strict=True)
    drawn: list[object] = [
        (seq_id, token_id, of_logit, reported.get(row))
        for row, (seq_id, token_id, of_logit) in enumerate(rows)
        if seq_id not in without
    ]
    return drawn + [run for run in outcome.prompt_logprobs if run.seq_id not in without]


@pytest.mark.parametrize(
    ("error", "told", "depth"), [(RuntimeError, KERNEL_RAISED, 4), (MemoryError, NO_MEMORY, 8)]
)
@pytest.mark.parametrize("poisoned", [{0}, {4}, {12}, {3, 4}, {0, 6, 12}, set(range(13))], ids=str)
def test_the_culprits_fail_alone_and_the_others_draw_what_they_would_have(
    poisoned: set[int], error: type[Exception], told: str, depth: int
) -> None:
    step = make_step(new=make_sequences(seed=len(poisoned), poisoned=poisoned))
    whole, _, _ = run(step, spare)
    outcome, sizes, _ = run(step, on_poison(error))
    failures = {seq_id: one.message for seq_id, one in outcome.failures.items()}
    assert failures == dict.fromkeys(poisoned, told)
    assert draws(outcome, without=set()) == draws(whole, without=poisoned)
    # Two halves at each of log2(13) levels; of log2(178) where tokens are halved.
    assert len(sizes) <= 1 + 2 * depth * len(poisoned)


@pytest.mark.parametrize("num_tokens", [1, 7, 40, 100])
def test_a_batch_that_memory_does_not_suffice_for_is_run_in_parts(num_tokens: int) -> None:
    step = make_step(new=make_sequences(seed=9, poisoned=set()))
    whole, _, expected = run(step, spare)
    outcome, sizes, runner = run(step, hold_at_most(num_tokens))
    assert len(sizes) > 2
    assert not outcome.failures
    assert draws(outcome, without=set()) == draws(whole, without=set())
    assert np.array_equal(runner.simulation.gpu_kv, expected.simulation.gpu_kv)


def test_what_memory_sufficed_for_is_the_limit_of_the_steps_to_come() -> None:
    step = make_step(new=make_sequences(seed=9, poisoned=set()))
    limit = TokenLimit(512)
    whole, _, _ = run(step, spare)
    run(step, hold_at_most(40), limit)
    assert 20 < limit.tokens <= 40
    assert limit.lowered == limit.tokens

    calls: list[int] = []
    outcome, _, _ = run(step, lambda batch: calls.append(len(batch.token_ids)), limit)
    assert max(calls) <= 40  # a larger one is not even tried
    assert draws(outcome, without=set()) == draws(whole, without=set())


def test_a_sequence_that_no_memory_suffices_for_lowers_nobodys_limit() -> None:
    limit = TokenLimit(512)
    step = make_step(new=make_sequences(seed=3, poisoned={5}))
    run(step, on_poison(MemoryError), limit)
    assert limit.lowered is None


def test_a_limit_is_doubled_now_and_then_until_it_is_none() -> None:
    limit = TokenLimit(100)
    limit.lower(30)
    limit.lower(35)
    found = []
    for _ in range(2):
        for _ in range(STEPS_TO_RETRY):
            found.append(limit.tokens)
            limit.count_step()
    assert found == [30] * STEPS_TO_RETRY + [60] * STEPS_TO_RETRY
    assert limit.tokens == 100
    assert limit.lowered is None


def test_an_error_that_passes_costs_nobody_anything() -> None:
    errors = [RuntimeError("once")]

    def fault(_: Batch) -> None:
        if errors:
            raise errors.pop()

    step = make_step(new=make_sequences(seed=4, poisoned=set()))
    whole, _, _ = run(step, spare)
    outcome, sizes, _ = run(step, fault)
    assert sizes == [13, 6, 7]
    assert not outcome.failures
    assert draws(outcome, without=set()) == draws(whole, without=set())


@pytest.mark.parametrize(
    ("num_tokens", "sizes", "failed"), [(512, [4], {0, 1, 2, 3}), (8, [2, 2], {2, 3})]
)
def test_sequences_that_may_have_lost_their_states_are_not_computed_again(
    num_tokens: int, sizes: list[int], failed: set[int]
) -> None:
    groups = (FULL_GROUP, CacheGroup(kind="state", state_blocks=2))
    new = [
        make_new(seq_id, [POISON if seq_id == 3 else 1] * 4, [10 + seq_id, 20 + 2 * seq_id])
        for seq_id in range(4)
    ]
    states = [(20 + 2 * seq_id, 21 + 2 * seq_id) for seq_id in range(4)]
    step = make_step(new=tuple(new), states=states)
    limit = TokenLimit(512)
    if num_tokens < 512:
        limit.lower(num_tokens)
    outcome, computed, _ = run(step, on_poison(RuntimeError), limit, groups=groups)
    assert computed == sizes
    assert {one: found.code for one, found in outcome.failures.items()} == dict.fromkeys(
        failed, Code.ABORTED
    )
    assert set(outcome.seq_ids.tolist()) == {0, 1, 2, 3} - failed


@pytest.mark.parametrize("cpu_backend", ["auto", "torch"])
def test_a_model_says_the_same_in_parts(native_tiny: Path, cpu_backend: str) -> None:
    runner = make_runner(native_tiny, cpu_backend=cpu_backend)
    sequences = [
        make_sequence(
            prompt,
            range(8 * i, 8 * i + 8),
            SamplingParams(temperature=i % 2, seed=i, num_logprobs=1),
        )
        for i, prompt in enumerate(make_prompts(3, 40, 17, 1, 25))
    ]
    batch = make_batch([(one, one.num_left) for one in sequences], block_size=16)
    culprit = int(batch.token_ids[-1])

    def fault(part: Batch) -> None:
        if part.token_ids[-1] == culprit:
            raise RuntimeError("illegal instruction")
        hold_at_most(30)(part)

    found = []
    for one in (runner, Planted(runner, fault)):
        runner.init_cache_engine(num_gpu_blocks=64, num_cpu_blocks=0)
        found.append(execute_batch(one, batch, TokenLimit(512)))  # type: ignore[arg-type]
    whole, parts = found
    assert parts.failed_seqs == {4: KERNEL_RAISED}
    assert parts.token_ids[:4].tolist() == whole.token_ids[:4].tolist()
    assert [one.logprob for one in parts.logprobs] == pytest.approx(
        [one.logprob for one in whole.logprobs[:4]], rel=0, abs=LOGITS
    )
    assert not whole.failed_seqs


class Beginning(Planted):
    """A runner whose steps fail before they begin, so that no state is changed."""

    def execute(self, batch: Batch) -> BatchOutput:
        self._fault(batch)
        return self._runner.execute(batch)


class Isolating(Beginning):
    """Such a runner, whose batches are computed as a lease does."""

    def __init__(self, runner: Runner, fault: Fault) -> None:
        super().__init__(runner, fault)
        self.limit = TokenLimit(512)

    def execute(self, batch: Batch) -> BatchOutput:
        beginning: Any = Beginning(self._runner, self._fault)
        return execute_batch(beginning, batch, self.limit)


@pytest.mark.parametrize("num_tokens", [2, 5])
@pytest.mark.parametrize("state_blocks", [0, 2])
def test_runs_of_drafts_are_cut_where_memory_does_not_suffice(
    num_tokens: int, state_blocks: int
) -> None:
    """The states behind drafts of a step in parts cannot be settled, so that none is accepted."""
    groups = (FULL_GROUP, CacheGroup(kind=STATE, state_blocks=state_blocks))
    runner = make_runner_for_drafts(groups=groups[: 1 + bool(state_blocks)])
    without = Loop(runner)
    expected = without.generate(DRAFTING, num_tokens=20)
    isolating = Isolating(runner, hold_at_most(num_tokens))
    cut = Loop(isolating, proposer=Oracle(without.texts()))
    assert cut.generate(DRAFTING, num_tokens=20, limit=lambda: MOST) == expected
    if not state_blocks:
        assert cut.num_steps < without.num_steps


def test_a_sequence_fails_alone_among_runs_of_drafts() -> None:
    runner = make_runner_for_drafts()
    without = Loop(runner)
    expected = without.generate(DRAFTING, num_tokens=20)
    (last,) = {*expected[10].token_ids[10:11]} - {*expected[0].token_ids, *expected[20].token_ids}

    def fault(batch: Batch) -> None:
        if last in batch.token_ids:
            raise RuntimeError("illegal instruction")

    isolating = Isolating(runner, fault)
    found = Loop(isolating, proposer=Oracle(without.texts()))
    answers = found.generate(DRAFTING, num_tokens=20, limit=lambda: MOST)
    assert answers.pop(10).failure == KERNEL_RAISED
    assert answers == {key: one for key, one in expected.items() if key != 10}


DRAFTING = [Wanted(prompt=[number, 2, 3]) for number in (5, 6, 7)]


def make_runner_for_drafts(**options: Any) -> SimulatedRunner:
    runner = SimulatedRunner(make_config(num_gpu_blocks=80, block_size=16, **options))
    runner.init_cache_engine(num_gpu_blocks=80, num_cpu_blocks=4)
    return runner
