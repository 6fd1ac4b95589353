"""A step of pooled prompts that fails as a whole: the culprit ends alone, no token counts twice."""

import random

import numpy as np
import pytest

from signalbox_contract.pooling import PoolingModel
from signalbox_contract.step import NewSequence
from signalbox_contract.step_result import StepResult
from signalbox_worker.lease.failure_isolation import KERNEL_RAISED, NO_MEMORY
from signalbox_worker.lease.lease import execute_batch
from signalbox_worker.lease.token_limit import TokenLimit
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.builders import make_config, make_new, make_step, make_table
from tests.gpu_worker.lease.test_failure_isolation import (
    POISON,
    Fault,
    Planted,
    hold_at_most,
    on_poison,
    spare,
)
from tests.gpu_worker.pooled_steps import BOTH_WAYS, LAST, MEAN, MODELS, NAMES, make_pooling_step
from tests.simulated_model import expected_vector

NUM_SEQS = 13


def make_prompts(*, poisoned: set[int]) -> list[list[int]]:
    rng = random.Random(len(poisoned))
    prompts = [[rng.randrange(1, 200) for _ in range(rng.randrange(4, 20))] for _ in range(13)]
    for seq_id in poisoned:
        prompts[seq_id][0] = POISON
    return prompts


def run(
    model: PoolingModel, prompts: list[list[int]], fault: Fault, *, limit: TokenLimit | None = None
) -> tuple[StepResult, StepResult, list[int]]:
    """Returns the results of two steps, and the sequences of each call: every third prompt of a
    causal model is cut after its third token, and ends in the second step."""
    runner = SimulatedRunner(
        make_config(num_gpu_blocks=80, max_num_seqs=16, max_num_batched_tokens=512, pooling=model)
    )
    runner.init_cache_engine(num_gpu_blocks=80, num_cpu_blocks=4)
    planted, table = Planted(runner, fault), make_table(runner)
    limit = limit or TokenLimit(512, cuts_sequences=not model.is_bidirectional)
    cut = set() if model.is_bidirectional else set(range(0, len(prompts), 3))

    def first_chunk(seq_id: int) -> NewSequence:
        prompt, first = prompts[seq_id], 5 * seq_id
        num_new = 3 if seq_id in cut else len(prompt)
        return make_new(seq_id, prompt, list(range(first, first + 5)), num_new_tokens=num_new)

    results = []
    rest = make_step(2, running={seq_id: len(prompts[seq_id]) - 3 for seq_id in sorted(cut)})
    for step in (make_pooling_step(*map(first_chunk, range(len(prompts)))), rest):
        samples = execute_batch(planted, table.apply(step), limit)  # type: ignore[arg-type]
        results.append(table.append_tokens(samples))
        table.check()
    return results[0], results[1], planted.sizes


def assert_vectors(
    model: PoolingModel, prompts: list[list[int]], *results: StepResult, failed: set[int]
) -> None:
    pooled = {seq_id: one for result in results for seq_id, one in result.pooled.items()}
    assert pooled.keys() == set(range(len(prompts))) - failed
    for seq_id, vector in pooled.items():
        assert np.array_equal(vector, expected_vector(prompts[seq_id], model=model)), seq_id


@pytest.mark.parametrize(
    ("error", "told"), [(RuntimeError, KERNEL_RAISED), (MemoryError, NO_MEMORY)]
)
@pytest.mark.parametrize("poisoned", [set(), {0}, {12}, {0, 3, 4}, set(range(13))], ids=str)
@pytest.mark.parametrize("model", MODELS, ids=NAMES)
def test_the_culprits_fail_alone_and_the_others_have_their_vectors(
    model: PoolingModel, poisoned: set[int], error: type[Exception], told: str
) -> None:
    prompts = make_prompts(poisoned=poisoned)
    first, second, _ = run(model, prompts, on_poison(error))
    assert {seq_id: one.message for seq_id, one in first.failures.items()} == dict.fromkeys(
        poisoned, told
    )
    assert_vectors(model, prompts, first, second, failed=poisoned)


@pytest.mark.parametrize("num_tokens", [1, 7, 40, 60])
@pytest.mark.parametrize("model", [LAST, MEAN], ids=["last", "mean"])
def test_a_batch_that_memory_does_not_suffice_for_is_run_in_parts(
    model: PoolingModel, num_tokens: int
) -> None:
    prompts = make_prompts(poisoned=set())
    first, second, sizes = run(model, prompts, hold_at_most(num_tokens))
    assert len(sizes) > 2
    assert_vectors(model, prompts, first, second, failed=set())


def test_a_sequence_that_must_be_whole_is_never_cut() -> None:
    prompts = make_prompts(poisoned=set())
    longest = max(map(len, prompts))
    limit = TokenLimit(512, cuts_sequences=False)
    first, second, _ = run(BOTH_WAYS, prompts, hold_at_most(longest - 1), limit=limit)
    too_long = {seq_id for seq_id, prompt in enumerate(prompts) if len(prompt) == longest}
    assert {one.message for one in first.failures.values()} == {NO_MEMORY}
    assert first.failures.keys() == too_long
    assert_vectors(BOTH_WAYS, prompts, first, second, failed=too_long)


def test_a_lowered_limit_tries_a_sequence_that_must_be_whole_alone() -> None:
    prompts = make_prompts(poisoned=set())
    limit = TokenLimit(512, cuts_sequences=False)
    limit.lower(5)
    first, second, sizes = run(BOTH_WAYS, prompts, spare, limit=limit)
    assert sizes.count(1) >= NUM_SEQS - 2
    assert_vectors(BOTH_WAYS, prompts, first, second, failed=set())
