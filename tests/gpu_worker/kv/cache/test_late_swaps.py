"""Under memory pressure a model says the same when its swaps come as late as they may."""

from pathlib import Path

import pytest

from signalbox import LLM, SamplingParams
from signalbox.llm.in_process.wiring import CoreConfig
from signalbox_scheduler.config import PreemptionMode, SchedulingSettings
from signalbox_worker.config import GIB
from signalbox_worker.kv.cache import cache_engine
from signalbox_worker.kv.cache.block_dependencies import WorkUnderWay
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.kv.cache.deferred_streams import LateCopies
from tests.gpu_worker.model_runners import make_runner
from tests.signalbox.llm.make import assert_at_rest, tokens_of

BLOCK_BYTES = 6144


def load(path: Path, num_blocks: int) -> LocalRunner:
    memory = num_blocks * BLOCK_BYTES / GIB
    return make_runner(path, kv_cache_memory=memory, swap_space=64 * BLOCK_BYTES / GIB)


def generate(path: Path, *, num_blocks: int) -> tuple[list[list[int]], int]:
    """Returns the tokens of twelve requests, and how often one was preempted."""
    prompts = [[3 + (7 * i + k) % 90 for k in range(20 + 3 * i)] for i in range(12)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    config = CoreConfig(scheduling=SchedulingSettings(preemption_mode=PreemptionMode.SWAP))
    with LLM._from_runner(lambda: load(path, num_blocks), config) as llm:
        found = llm.generate(prompt_token_ids=prompts, sampling_params=params, use_tqdm=False)
        assert_at_rest(llm.llm_engine)
        return tokens_of(found), llm.llm_engine._core.scheduler.preemption.num_preemptions


def test_swaps_that_come_as_late_as_they_may_change_no_token(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = generate(tiny, num_blocks=128)
    monkeypatch.setattr(cache_engine, "streams_of", lambda device: LateCopies())
    found, num_preemptions = generate(tiny, num_blocks=20)
    assert found == expected
    assert num_preemptions > 0


def test_swaps_that_nobody_waits_for_are_seen_in_the_tokens(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = generate(tiny, num_blocks=128)
    monkeypatch.setattr(cache_engine, "streams_of", lambda device: LateCopies())
    monkeypatch.setattr(WorkUnderWay, "conflict", lambda self, use: None)
    assert generate(tiny, num_blocks=20)[0] != expected
