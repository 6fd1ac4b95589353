"""Several models as real processes: by turns, within the memory, and none left."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from signalbox.client.connection import router_client
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeCommandSettings
from signalbox.settings.sources import SettingsError
from signalbox.stack.models.model_launcher import ModelLauncher
from signalbox.stack.models.model_list import named_models
from signalbox.stack.models.model_plan import MOST_RETRIES
from signalbox.stack.models_stack import SIMULATED_BYTES, ModelsStack
from signalbox_contract.errors import Unavailable
from signalbox_contract.model_state import ModelState
from signalbox_worker.config import GIB
from tests.gpu_worker.tiny_models import make_llama
from tests.waiting import EVENT_S, eventually

ROOM_FOR_ONE = 1.05 * SIMULATED_BYTES / GIB
SIMULATED = "a: {simulate: true}\nb: {simulate: true}\n"


def make_stack(tmp_path: Path, models: str, **flags: Any) -> ModelsStack:
    file = tmp_path / "models.yaml"
    file.write_text(models)
    given = {"models": str(file), "grpc_port": 0, "http": False, "models_loaded": "none", **flags}
    settings = load(ServeCommandSettings, given)
    return ModelsStack(settings, named_models(settings))


@asynccontextmanager
async def launched(stack: ModelsStack) -> AsyncIterator[ModelLauncher]:
    """Yields the launcher of a stack; fails if a process is left afterwards."""
    before = {*psutil.Process().children(recursive=True)}
    stack.launch()
    try:
        await stack.watch()
        assert stack.launcher is not None
        yield stack.launcher
    finally:
        await stack.stop()
        left = {*psutil.Process().children(recursive=True)} - before
        stack.kill()
        psutil.wait_procs(left, timeout=EVENT_S)
    assert left == set()


def pids_of(name: str) -> list[int]:
    """Process ids of a model's scheduler and workers that run."""
    found = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            if child.environ().get("SIGNALBOX_PROCESS_NAME", "").startswith(f"{name} "):
                found.append(child.pid)
    return found


async def test_a_worker_that_is_killed_while_it_starts_or_ends_leaves_none(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, SIMULATED)
    async with launched(stack) as launcher:
        call = asyncio.create_task(launcher.load("a"))
        for _ in range(MOST_RETRIES + 1):
            await eventually(lambda: len(pids_of("a")) == 2)
            killed = pids_of("a")
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
            await eventually(lambda killed=killed: not {*killed} & {*pids_of("a")})
        with pytest.raises(Unavailable, match=r"a cannot be started: (worker 0|a scheduler) was"):
            await call
        await eventually(lambda: not pids_of("a"))
        await launcher.load("b")
        unload = asyncio.create_task(launcher.unload("b"))
        for pid in pids_of("b"):
            os.kill(pid, signal.SIGKILL)
        await unload
        assert launcher.state("b") is ModelState.UNLOADED


async def test_a_model_whose_files_have_vanished_is_said_so_and_others_go_on(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    make_llama(folder)
    stack = make_stack(tmp_path, f"{SIMULATED}gone: {folder}\n")
    async with launched(stack) as launcher:
        folder.rename(tmp_path / "elsewhere")
        with pytest.raises(Unavailable, match=f"gone cannot be started: model not found: {folder}"):
            await launcher.load("gone")
        await launcher.load("a")


def test_a_limit_below_each_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    stack = make_stack(tmp_path, SIMULATED, models_memory=0.1)
    with pytest.raises(SettingsError, match=r"a takes 0.2 GiB, and models may take 0.1 GiB"):
        stack.launch()


async def test_a_model_that_is_too_large_is_listed_with_the_reason(tmp_path: Path) -> None:
    models = "a: {simulate: true}\nlarge: {simulate: true, workers: 9}\n"
    stack = make_stack(tmp_path, models, models_memory=1.0)
    async with launched(stack) as launcher:
        async for _, statuses in launcher.statuses():
            assert [one.state for one in statuses] == [ModelState.UNLOADED, ModelState.FAILED]
            assert statuses[1].reason.startswith("large takes 2.2 GiB, and models may take 1.0 GiB")
            break


async def test_requests_of_two_models_are_answered_though_a_worker_is_killed(
    tmp_path: Path,
) -> None:
    """Where there is room for one. Each answer is that of a model which serves undisturbed."""
    stack = make_stack(tmp_path, SIMULATED, models_memory=ROOM_FOR_ONE)
    async with launched(stack), router_client(stack.addresses.router) as client:

        async def ask(model: str) -> str:
            params = {"max_tokens": 4, "temperature": 0.0, "ignore_eos": True}
            answer = await client.generate("hello", model=model, timeout_s=EVENT_S, **params)
            return answer.outputs[0].text

        await stack.until_serving()
        alone = [await ask("a"), await ask("b")]
        asking = asyncio.gather(ask("a"), ask("b"))
        await eventually(lambda: len(pids_of("a")) == 2)
        os.kill(pids_of("a")[1], signal.SIGKILL)
        assert await asking == alone
