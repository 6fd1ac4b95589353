"""A worker of a model reads a prefix of another's CPU pool, with the same tokens after it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.runner.runner import Runner
from tests.gpu_worker.runner.ranks.thread_ranks import SIZES, loading
from tests.gpu_worker.tiny_models import make_llama, make_model
from tests.integration.stack import Router, assert_idle, router, running_scheduler, running_worker
from tests.scheduler_svc.make import transfers
from tests.waiting import eventually

PROMPT = list(range(3, 64)) * 3
NUM_BLOCKS = (len(PROMPT) - 1) // 16


pytestmark = pytest.mark.usefixtures("patient_moves", "loading_pays")


async def ask(client: Router, handle: int) -> tuple[list[int], int]:
    """Returns the tokens of an answer, and how many of the prompt were cached."""
    await client.add(handle, PROMPT, max_tokens=8)
    (got,) = await client.ended(handle)
    got.assert_served()
    return got.tokens[0], got.end.usage.cached_tokens


@pytest.mark.parametrize(
    ("backend", "tp", "pp"), [*SIZES, pytest.param("torch", 2, 1, marks=pytest.mark.system)]
)
async def test_a_model_goes_on_with_the_blocks_of_another_worker(
    tmp_path: Path, backend: str, tp: int, pp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_llama(tmp_path)
    await assert_goes_on(loading(tmp_path, backend, tp, pp), monkeypatch)


@pytest.mark.parametrize(
    ("family", "sizes"), [("lfm2", {}), ("qwen3.5", {}), ("gemma3", {"sliding_window": 21})]
)
async def test_states_and_windows_come_from_another_worker(
    tmp_path: Path, family: str, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, family, max_position_embeddings=256, **sizes)
    await assert_goes_on(loading(tmp_path, "native", 1, 1), monkeypatch)


async def assert_goes_on(load: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load),
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        expected, _ = await ask(client, 1)
        # It takes nothing new, so that the other worker gets the request.
        monkeypatch.setattr(loops[0].scheduler.state.selection, "next_group", lambda: None)
        async with running_worker(scheduler.address, load):
            await eventually(lambda: len(loops) == 2)
            reads = transfers(loops[0].scheduler).peer.reads
            monkeypatch.setattr(reads, "find", lambda *_: None)
            assert await ask(client, 2) == (expected, NUM_BLOCKS * 16)
            reader = transfers(loops[1].scheduler).peer
            assert reader.reads.counts.num_hits == NUM_BLOCKS * 16
            await assert_idle(scheduler)
