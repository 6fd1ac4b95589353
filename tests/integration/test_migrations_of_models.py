"""A worker of a model hands running requests over, with the tokens that it would have drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_worker.runner.runner import Runner
from tests.gpu_worker.runner.ranks.thread_ranks import SIZES, loading
from tests.gpu_worker.tiny_models import LATENTS, make_llama, make_model
from tests.integration.stack import Router, assert_idle, router, running_scheduler, running_worker
from tests.scheduler_svc.make import transfers
from tests.waiting import eventually

NUM_STREAMS, NUM_TOKENS = 8, 180


def _column(values: list[int]) -> bytes:
    return np.array(values, dtype="<i4").tobytes()


# They depend on all tokens before, of which the destination has none.
RULES: list[dict[str, Any]] = [
    {},
    {},
    {"presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"repetition_penalty": 1.2, "num_logprobs": 2},
    {"min_tokens": 170, "stop_token_ids": [*range(40, 60)]},
    {"bad_words": [{"token_ids": _column([a, b])} for a in range(40) for b in range(30, 60)]},
    {"allowed_token_ids": _column([*range(20, 70)]), "frequency_penalty": 0.9},
    {
        "logit_bias_token_ids": _column([30, 31]),
        "logit_biases": np.array([2.5, -100], dtype="<f4").tobytes(),
        "presence_penalty": 1.5,
    },
]


pytestmark = pytest.mark.usefixtures("patient_moves")


async def start(client: Router, first_handle: int) -> range:
    """Begins greedy and sampled requests, each of two sequences; returns their handles."""
    handles = range(first_handle, first_handle + NUM_STREAMS)
    for index, handle in enumerate(handles):
        await client.add(
            handle,
            range(3 + index, 50 + 2 * index),
            max_tokens=NUM_TOKENS,
            num_sequences=2,
            sampling_params={
                "top_p": 1.0,
                "temperature": 0.8 * (index % 2),
                "seed": index,
                **RULES[index],
            },
        )
    return handles


async def outputs(client: Router, handles: range) -> list[dict[int, list[int]]]:
    answers = await client.ended(*handles)
    for got in answers:
        got.assert_served()
    return [got.tokens for got in answers]


def take_nothing_new(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler.state.selection, "next_group", lambda: None)


@pytest.mark.parametrize(("backend", "tp", "pp"), SIZES)
async def test_requests_of_a_model_go_on_at_another_worker(
    tmp_path: Path, backend: str, tp: int, pp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_llama(tmp_path)
    await assert_going_on(loading(tmp_path, backend, tp, pp), monkeypatch)


async def test_requests_go_on_with_their_latents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "deepseek-v2", **LATENTS)
    await assert_going_on(loading(tmp_path, "native", 1, 1), monkeypatch)


@pytest.mark.parametrize(
    ("family", "sizes"), [("lfm2", {}), ("qwen3.5", {}), ("gemma3", {"sliding_window": 21})]
)
async def test_requests_go_on_with_their_states_and_windows(
    tmp_path: Path, family: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, family, max_position_embeddings=256, **sizes)
    await assert_going_on(loading(tmp_path, "native", 1, 1), monkeypatch)


async def assert_going_on(load: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0, prefix_caching=True)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load),
    ):
        cluster, loops = scheduler.cluster, scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        expected = await outputs(client, await start(client, 0))
        async with running_worker(scheduler.address, load):
            await eventually(lambda: len(loops) == 2)
            destination = loops[1].scheduler
            take_nothing_new(destination, monkeypatch)
            handles = await start(client, 100)
            await eventually(lambda: all(client.got[handle].tokens for handle in handles))
            cluster.drain(loops[0])
            assert await outputs(client, handles) == expected
            assert transfers(destination).migrations.num_in > 0
            assert destination.output_processor.num_prompt_tokens == 0, (
                "a prompt was computed again"
            )
            await assert_idle(scheduler)


async def test_requests_of_a_killed_worker_get_their_states_at_another(tmp_path: Path) -> None:
    make_model(tmp_path, "qwen3.5", max_position_embeddings=256)
    load = loading(tmp_path, "native", 1, 1)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load) as killed,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        expected = await outputs(client, await start(client, 0))
        handles = await start(client, 100)
        await eventually(lambda: all(client.got[handle].tokens for handle in handles))
        async with running_worker(scheduler.address, load):
            await eventually(lambda: len(loops) == 2)
            await killed.kill()
            assert await outputs(client, handles) == expected
            assert scheduler.cluster.worker_records.num_failures == 1
            await assert_idle(scheduler)
