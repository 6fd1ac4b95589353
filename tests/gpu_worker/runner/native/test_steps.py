"""What a step does on a CPU; `runner.executors.test_cpu_steps` is the same of PyTorch."""

from pathlib import Path

import pytest

from signalbox_contract.sampling_params import SamplingParams
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.builders import make_mapping, make_step
from tests.gpu_worker.generation import Driver, Generated, make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.native_kernels import skip_without_native_kernels


@pytest.fixture(params=["float32", "bfloat16"])
def runner(request: pytest.FixtureRequest, native_tiny: Path) -> LocalRunner:
    skip_without_native_kernels()
    runner: LocalRunner = make_runner(native_tiny, cpu_backend="native", dtype=request.param)
    return runner


def test_branches_of_one_token_draw_from_its_logits(runner: LocalRunner) -> None:
    (prompt,) = make_prompts(9)
    params = SamplingParams(temperature=1.0, seed=11)
    alone = [
        make_batch([(make_sequence(prompt, [5], params, branch=branch), 9)], block_size=16)
        for branch in range(3)
    ]
    drawn = [int(runner.execute(batch).token_ids[0]) for batch in alone]
    together = alone[0]
    together.rows = make_batch([(make_sequence(prompt, [5], params), 9)] * 3, block_size=16).rows
    together.rows.branch[:] = range(3)
    together.rows.token_index[:] = 8
    assert runner.execute(together).token_ids.tolist() == drawn
    assert len(set(drawn)) > 1


def test_step_without_rows_draws_nothing_and_the_next_one_goes_on(runner: LocalRunner) -> None:
    (prompt,) = make_prompts(20)
    sequence = make_sequence(prompt, [1, 2])
    samples = runner.execute(make_batch([(sequence, 12)], block_size=16))
    assert len(samples.token_ids) == 0
    assert samples.forward_ns > 0
    sequence.num_computed = 12
    samples = runner.execute(make_batch([(sequence, 8)], block_size=16))
    assert len(samples.token_ids) == 1
    assert samples.forward_ns > 0
    assert samples.sample_ns > 0


def test_swapped_sequence_goes_on_as_if_nothing_had_happened(runner: LocalRunner) -> None:
    (prompt,) = make_prompts(37)
    (expected,) = Driver(runner=runner).generate([prompt], num_tokens=20)
    runner.init_cache_engine(num_gpu_blocks=64, num_cpu_blocks=8)
    driver, sequence = Driver(runner=runner), make_sequence(prompt, [9, 4, 30, 31])
    while len(sequence.token_ids) < len(prompt) + 8:
        driver.step([sequence])
    runner.apply(make_step(swap_out=make_mapping({9: 7, 4: 0, 30: 2})))
    runner.pools.gpu_pool[[9, 4, 30]] = 77
    runner.apply(make_step(swap_in=make_mapping({7: 50, 0: 51, 2: 3})))
    sequence.blocks[:3] = [50, 51, 3]
    while len(sequence.token_ids) < len(prompt) + 20:
        driver.step([sequence])
    assert sequence.token_ids[len(prompt) :] == expected


def test_poisoned_sequence_fails_alone_and_its_blocks_can_be_reused(runner: LocalRunner) -> None:
    def make_sequences() -> list[Generated]:
        prompts = make_prompts(17, 17, 18)
        return [make_sequence(p, range(8 * i, 8 * i + 8)) for i, p in enumerate(prompts)]

    healthy, driver = make_sequences(), Driver(runner=runner)
    for _ in range(20):
        driver.step(healthy)
    sick = make_sequences()
    driver.step(sick)
    runner.pools.gpu_pool[sick[1].blocks[0]] = 255  # NaN everywhere
    assert driver.step(sick).failed == {1: "logits are not finite"}
    runner.pools.gpu_pool[:] = 255
    heirs = make_sequences()
    for _ in range(20):
        assert not driver.step(heirs).failed
    assert [s.token_ids for s in heirs] == [s.token_ids for s in healthy]
    for survivor, twin in zip(sick[::2], healthy[::2], strict=True):
        assert survivor.token_ids == twin.token_ids[: len(survivor.token_ids)]
