"""Models behind the scheduler: the vectors of whole prompts, in chunks and as a worker dies."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from contract.pooling import PoolingParams, encode
from gpu_worker import runner_factory
from gpu_worker.batch.runner_protocol import Runner
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from scheduler_svc.config import SchedulerConfig
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.pooling.encoder_models import VOCAB, save_model
from tests.gpu_worker.pooling.pooled_batches import pool
from tests.integration.stack import Router, router, running_scheduler, running_worker
from tests.waiting import eventually

pytestmark = pytest.mark.slow

LENGTHS = (3, 5, 11, 18, 19, 42, 43, 122, 202, 7, 35, 66)
STEP_TOKENS = 32


def make_prompts() -> list[list[int]]:
    """Each comes three times, so that it may find blocks."""
    rng = np.random.default_rng(7)
    return [rng.integers(5, VOCAB, length).tolist() for length in LENGTHS] * 3


def save(path: Path, family: str, mode: str) -> None:
    save_model(path, family)
    modules = ("Transformer", ""), ("Pooling", "1_Pooling")
    (path / "modules.json").write_text(
        json.dumps(
            [
                {"idx": i, "path": folder, "type": f"sentence_transformers.models.{name}"}
                for i, (name, folder) in enumerate(modules)
            ]
        )
    )
    (path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 48, f"pooling_mode_{mode}": True}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def runner_of(path: Path) -> Callable[[], Runner]:
    return partial(
        runner_factory.make_runner,
        ModelConfig(model=str(path), dtype="float32"),
        CacheConfig(max_num_seqs=8, max_num_batched_tokens=STEP_TOKENS, kv_cache_memory=0.02),
        device_config=DeviceConfig(device="cpu", num_threads=1),
    )


async def run_load(client: Router, prompts: list[list[int]]) -> None:
    for handle, prompt in enumerate(prompts):
        await client.add(handle, prompt, max_tokens=1, pooling=encode(PoolingParams()))
    await client.ended(*range(len(prompts)))


@pytest.mark.parametrize(
    ("family", "mode"),
    [("bert", "mean_tokens"), ("qwen3", "mean_tokens"), ("qwen3", "lasttoken")],
)
async def test_vectors_are_those_of_whole_prompts_though_a_worker_is_killed(
    family: str, mode: str, tmp_path: Path
) -> None:
    save(tmp_path, family, mode)
    prompts = make_prompts()
    expected = pool(make_runner(tmp_path, max_num_seqs=64), prompts)
    make = runner_of(tmp_path)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make) as first,
    ):
        step_loops = scheduler.cluster.step_loops
        await eventually(lambda: len(step_loops) == 1)
        async with running_worker(scheduler.address, make), router(scheduler.address) as client:
            await eventually(lambda: len(step_loops) == 2)
            load = asyncio.create_task(run_load(client, prompts))
            await eventually(lambda: any(got.end is not None for got in client.got.values()))
            await first.kill()
            await load
            assert all(got.end and not got.end.code for got in client.got.values())
            vectors = [client.got[handle].vector for handle in range(len(prompts))]
            actual = np.stack([one for one in vectors if one is not None])
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5)
            await eventually(lambda: len(step_loops) == 1)
            (loop,) = step_loops
            blocks = loop.scheduler.blocks.gpu
            await eventually(lambda: blocks.num_free == blocks.num_blocks)
            assert mode == "lasttoken" or not loop.scheduler.planner.num_prefix_hits
            scheduler.cluster.check()
