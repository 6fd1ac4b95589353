"""Simulated pipeline stages: the time that steps take, and the tokens, which are the same."""

import time
from typing import Any

import pytest

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.runner.simulated.stage_times import StageTimes
from tests.signalbox.llm.make import assert_at_rest
from tests.simulated_model import expected_tokens


def test_a_step_waits_for_the_one_before_it_in_each_stage() -> None:
    stages = StageTimes((1, 2, 1))
    steps = [stages.enter(now_ns, 40) for now_ns in (100, 100, 100, 500)]
    assert [ends_at for ends_at, _ in steps] == [140, 160, 180, 540]  # the second stage takes 20
    queued = [[stage.queue_ns for stage in times] for _, times in steps]
    assert queued == [[0, 0, 0], [10, 10, 0], [20, 20, 0], [0, 0, 0]]
    waited = [[stage.wait_ns for stage in times] for _, times in steps]
    assert waited == [[0, 10, 30], [0, 0, 10], [0, 0, 10], [0, 10, 30]]
    assert all([stage.forward_ns for stage in times] == [10, 20, 10] for _, times in steps)


@pytest.mark.parametrize("stages", [(0,), (1, 0), ()])
def test_a_stage_without_a_share_is_refused(stages: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a share of at least 1"):
        SimulatedConfig(stages=stages)


def test_stages_change_no_token_and_compute_at_once() -> None:
    config = SimulatedConfig(stages=(1, 1, 1), step_ns=3_000_000, num_gpu_blocks=40, max_num_seqs=8)
    prompts: Any = [{"prompt_token_ids": [5, 6, 7 + i] * 9} for i in range(12)]
    params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    with LLM._from_runner(lambda: SimulatedRunner(config), CoreConfig()) as llm:
        began_at = time.monotonic()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        elapsed_s = time.monotonic() - began_at
        num_steps = llm.llm_engine._core.scheduler.num_steps
        assert_at_rest(llm.llm_engine)
    for prompt, output in zip(prompts, outputs, strict=True):
        expected = expected_tokens(prompt["prompt_token_ids"], num_tokens=40)
        assert output.outputs[0].token_ids == expected
    assert elapsed_s >= num_steps * config.step_ns / 3e9  # each stage had a third of each step
