"""Models behind the scheduler: vectors of sentence-transformers, whatever happens to workers."""

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from signalbox_contract.pooling import PoolingParams, encode
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service import runner_factory
from tests.gpu_worker.models.pooling.encoder_models import VOCAB, save_model
from tests.integration.stack import Router, assert_idle, router, running_scheduler, running_worker
from tests.waiting import eventually

pytestmark = pytest.mark.slow

LENGTHS = (3, 5, 11, 18, 19, 42, 43, 122, 202, 7, 35, 66)
STEP_TOKENS = 32
LEAVES = 5
"""Of so many clients, one leaves."""


def make_prompts() -> list[list[int]]:
    """Each comes six times, so that it may find blocks."""
    rng = np.random.default_rng(7)
    return [rng.integers(5, VOCAB, length).tolist() for length in LENGTHS] * 6


def save(path: Path, family: str, mode: str) -> None:
    save_model(path, family)
    modules = ("Transformer", ""), ("Pooling", "1_Pooling")
    (path / "modules.json").write_text(
        json.dumps(
            [
                {
                    "idx": i,
                    "name": str(i),
                    "path": folder,
                    "type": f"sentence_transformers.models.{name}",
                }
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
        RunnerConfig(
            model=ModelConfig(model=str(path), dtype="float32"),
            cache=CacheConfig(
                max_num_seqs=8, max_num_batched_tokens=STEP_TOKENS, kv_cache_memory=0.02
            ),
            device=DeviceConfig(device="cpu", num_threads=1),
        ),
    )


def vectors_of_sentence_transformers(path: Path, prompts: Sequence[list[int]]) -> FloatArray:
    """Returns what sentence-transformers makes of each prompt alone."""
    model = SentenceTransformer(str(path), device="cpu")
    vectors = []
    with torch.no_grad():
        for prompt in prompts:
            token_ids = torch.tensor([prompt])
            features = {"input_ids": token_ids, "attention_mask": torch.ones_like(token_ids)}
            vectors.append(model(features)["sentence_embedding"][0].numpy())
    return np.stack(vectors)


async def run_load(client: Router, prompts: list[list[int]]) -> None:
    """Adds all, and leaves some at once; returns when the others have ended."""
    for handle, prompt in enumerate(prompts):
        await client.add(handle, prompt, max_tokens=1, pooling=encode(PoolingParams()))
        if handle % LEAVES == 0:
            await client.abort(handle)
    await client.ended(*kept(prompts))


def kept(prompts: list[list[int]]) -> list[int]:
    return [handle for handle in range(len(prompts)) if handle % LEAVES]


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        ("bert", "mean_tokens"),
        ("embedding-gemma", "mean_tokens"),
        ("qwen3", "mean_tokens"),
        ("qwen3", "lasttoken"),
    ],
)
async def test_vectors_are_sentence_transformers_though_workers_come_and_go(
    family: str, mode: str, tmp_path: Path
) -> None:
    """Prompts of mixed lengths, in chunks if the model is causal, in which equal ones share blocks
    if they may; clients leave; and of two workers one is killed and replaced."""
    save(tmp_path, family, mode)
    prompts = make_prompts()
    expected = vectors_of_sentence_transformers(tmp_path, prompts)
    make, tasks = runner_of(tmp_path), asyncio.all_tasks()
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make) as first,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        step_loops = scheduler.cluster.step_loops
        await eventually(lambda: len(step_loops) == 2)
        load = asyncio.create_task(run_load(client, prompts))
        await eventually(lambda: any(got.vector is not None for got in client.got.values()))
        await first.kill()
        async with running_worker(scheduler.address, make):
            await load
            await eventually(lambda: len(step_loops) == 2)
            for handle in kept(prompts):
                got = client.got[handle]
                assert got.end is not None and got.vector is not None and not got.end.code
                np.testing.assert_allclose(got.vector, expected[handle], rtol=0, atol=1e-5)
            await assert_idle(scheduler)
            for loop in step_loops:
                assert mode == "lasttoken" or not loop.scheduler.planner.num_prefix_hits
    await eventually(lambda: asyncio.all_tasks() == tasks)
