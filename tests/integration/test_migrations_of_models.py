"""A worker of a model hands running requests over, with the tokens that it would have drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_worker.runner.runner import Runner
from tests.gpu_worker.foresight import Foresight
from tests.gpu_worker.runner.ranks.thread_ranks import SIZES, loading
from tests.gpu_worker.tiny_models import LATENTS, make_llama, make_model
from tests.integration.stack import (
    Got,
    Router,
    assert_idle,
    router,
    running_scheduler,
    running_worker,
)
from tests.scheduler_svc.make import transfers
from tests.waiting import eventually

NUM_STREAMS, NUM_TOKENS, NUM_DRAFTS = 8, 180, 2


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


def prompt_of(index: int) -> range:
    return range(3 + index, 50 + 2 * index)


async def start(client: Router, first_handle: int) -> range:
    """Begins greedy and sampled requests, each of two sequences; returns their handles."""
    handles = range(first_handle, first_handle + NUM_STREAMS)
    for index, handle in enumerate(handles):
        await client.add(
            handle,
            prompt_of(index),
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


async def outputs(client: Router, handles: range, *, is_exact: bool = True) -> list[Got]:
    """Returns tokens of each request, and log probabilities if they do not depend on the batch."""
    answers = await client.ended(*handles)
    for got in answers:
        got.assert_served()
    return [Got(tokens=got.tokens, logprobs=got.logprobs if is_exact else {}) for got in answers]


def foresee(foresight: Foresight, answers: list[Got]) -> None:
    foresight.texts += [
        [*prompt_of(index), *token_ids]
        for index, got in enumerate(answers)
        for token_ids in got.tokens.values()
    ]


def assert_drafted(*schedulers: Scheduler) -> None:
    """Workers that may compute drafts have, and some were refused."""
    uses = [one.output_processor.speculation for one in schedulers]
    accepted, computed = (
        sum(use.num_accepted for use in uses),
        sum(use.num_drafts for use in uses),
    )
    drafts = schedulers[0].limits.max_draft_tokens > 0
    assert (0 < accepted < computed) is drafts


def take_nothing_new(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler.state.selection, "next_group", lambda: None)


@pytest.mark.parametrize(("backend", "tp", "pp"), SIZES)
async def test_requests_of_a_model_go_on_at_another_worker(
    tmp_path: Path,
    backend: str,
    tp: int,
    pp: int,
    foresight: Foresight,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_llama(tmp_path)
    load = loading(tmp_path, backend, tp, pp)
    await assert_going_on(load, foresight, monkeypatch, is_exact=backend == "native")


async def test_requests_go_on_with_their_latents(
    tmp_path: Path, foresight: Foresight, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "deepseek-v2", **LATENTS)
    await assert_going_on(loading(tmp_path, "native", 1, 1), foresight, monkeypatch)


@pytest.mark.parametrize(
    ("family", "sizes"), [("lfm2", {}), ("qwen3.5", {}), ("gemma3", {"sliding_window": 21})]
)
async def test_requests_go_on_in_the_middle_of_runs_with_their_states_and_windows(
    tmp_path: Path,
    family: str,
    sizes: dict[str, Any],
    foresight: Foresight,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_model(tmp_path, family, max_position_embeddings=256, **sizes)
    load = loading(tmp_path, "native", 1, 1, num_drafts=NUM_DRAFTS)
    await assert_going_on(load, foresight, monkeypatch)


async def assert_going_on(
    load: Callable[[], Runner],
    foresight: Foresight,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_exact: bool = True,
) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0, prefix_caching=True)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load),
    ):
        cluster, loops = scheduler.cluster, scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        expected = await outputs(client, await start(client, 0), is_exact=is_exact)
        foresee(foresight, expected)
        async with running_worker(scheduler.address, load):
            await eventually(lambda: len(loops) == 2)
            source, destination = (loop.scheduler for loop in loops)
            take_nothing_new(destination, monkeypatch)
            handles = await start(client, 100)
            await eventually(lambda: all(client.got[handle].tokens for handle in handles))
            cluster.drain(loops[0])
            assert await outputs(client, handles, is_exact=is_exact) == expected
            assert transfers(destination).migrations.num_in > 0
            assert_drafted(source, destination)
            assert destination.output_processor.num_prompt_tokens == 0, (
                "a prompt was computed again"
            )
            await assert_idle(scheduler)


async def test_requests_of_a_killed_worker_get_their_states_at_another(
    tmp_path: Path, foresight: Foresight
) -> None:
    make_model(tmp_path, "qwen3.5", max_position_embeddings=256)
    load = loading(tmp_path, "native", 1, 1, num_drafts=NUM_DRAFTS)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load) as killed,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        expected = await outputs(client, await start(client, 0))
        foresee(foresight, expected)
        handles = await start(client, 100)
        await eventually(lambda: all(client.got[handle].tokens for handle in handles))
        async with running_worker(scheduler.address, load):
            await eventually(lambda: len(loops) == 2)
            source, destination = (loop.scheduler for loop in loops)
            await killed.kill()
            assert await outputs(client, handles) == expected
            assert scheduler.cluster.worker_records.num_failures == 1
            assert_drafted(source, destination)
            await assert_idle(scheduler)
