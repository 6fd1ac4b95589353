"""Services that load adapters at run time, of which simulated workers compute the tokens."""

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from signalbox_contract.model import Adapter
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    Router,
    RunningScheduler,
    RunningWorker,
    assert_idle,
    router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.ports import free_port
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually

PROMPT = list(range(100, 140))
NUM_TOKENS = 40
StatusCode = grpc.StatusCode


def write_adapter(folder: Path, content: str = "weights") -> str:
    """Writes files that a simulated worker takes for an adapter; returns its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
    digest = sha256()
    for name, text in (
        ("adapter_config.json", json.dumps(config)),
        ("adapter_model.safetensors", content),
    ):
        (folder / name).write_text(text)
        digest.update(sha256(text.encode()).digest())
    return digest.hexdigest()


async def load(client: Router, name: str, path: str, **flags: bool) -> Adapter:
    request = pb.LoadAdapterRequest(name=name, path=path, **flags)
    answer = await client.stub.LoadAdapter(request, timeout=EVENT_S)
    return Adapter(name=answer.adapter.name, sha256=answer.adapter.sha256)


async def unload(client: Router, name: str) -> int:
    answer = await client.stub.UnloadAdapter(pb.UnloadAdapterRequest(name=name))
    return int(answer.num_requests)


async def listed(client: Router) -> list[tuple[str, str, bool]]:
    answer = await client.stub.ListAdapters(pb.ListAdaptersRequest())
    return [(one.adapter.name, one.adapter.sha256, one.is_leaving) for one in answer.adapters]


async def refused(doing: Any, code: grpc.StatusCode) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await doing
    assert error.value.code() is code, error.value.details()
    return error.value.details() or ""


async def check_tokens(client: Router, handle: int, adapter: str) -> None:
    await client.add(handle, PROMPT, adapter=adapter, max_tokens=NUM_TOKENS)
    (got,) = await client.ended(handle)
    got.assert_served()
    assert got.tokens[0] == expected_tokens(PROMPT, num_tokens=NUM_TOKENS, adapter=adapter)


def loaded_on(worker: RunningWorker) -> set[tuple[str, str]]:
    return {(one.name, one.sha256) for one in worker.worker.model.adapters}


async def until_all_have(workers: list[RunningWorker], *adapters: tuple[str, str]) -> None:
    await eventually(lambda: all(loaded_on(one) == set(adapters) for one in workers))


@dataclass(slots=True)
class Stack:
    """A scheduler and two workers that take adapters below one folder."""

    scheduler: RunningScheduler
    workers: list[RunningWorker]
    client: Router
    folder: Path

    def worker(self, **settings: Any) -> "contextlib.AbstractAsyncContextManager[RunningWorker]":
        """Another worker with the same files."""
        return worker_of(self.scheduler, self.folder, **settings)


def worker_of(
    scheduler: RunningScheduler, folder: Path, **settings: Any
) -> "contextlib.AbstractAsyncContextManager[RunningWorker]":
    make = simulated(num_gpu_blocks=256, **({"step_ns": 1_000_000} | settings))
    return running_worker(scheduler.address, make, adapter_dir=folder)


@contextlib.asynccontextmanager
async def make_stack(folder: Path, **config: Any) -> AsyncIterator[Stack]:
    async with (
        running_scheduler(SchedulerConfig(port=free_port(), **config)) as scheduler,
        worker_of(scheduler, folder) as first,
        worker_of(scheduler, folder) as second,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 2)
        yield Stack(scheduler, [first, second], client, folder)
        await assert_idle(scheduler)
