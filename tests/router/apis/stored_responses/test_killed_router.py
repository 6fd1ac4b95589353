"""A router process that is killed while it makes a response in the background."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai

from tests.chaos.services import Service
from tests.ports import free_port
from tests.router.apis.inference.test_chat import TEMPLATE, writing
from tests.router.apis.openai.clients import MODEL
from tests.router.apis.stored_responses.test_background import TEXT, begun, end_of
from tests.router.fakes import FakeScheduler, make_files
from tests.waiting import EVENT_S, eventually


@contextlib.asynccontextmanager
async def router_process(folder: Path, scheduler: str) -> AsyncIterator[tuple[Service, Any]]:
    """Runs a router with a file of responses; kills it at the end."""
    port = free_port()
    arguments = (
        "router",
        f"--scheduler={scheduler}",
        f"--http-port={port}",
        f"--response-store=sqlite:{folder}/kept",
    )
    service = Service(arguments, free_port(), folder / f"log-{port}")
    service.start()
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=EVENT_S
    )
    try:
        async with client:
            await eventually(lambda: b"HTTP at" in service.log.read_bytes())
            yield service, client
    finally:
        await service.kill()


async def test_the_next_router_draws_the_same_tokens(tmp_path: Path) -> None:
    scheduler = FakeScheduler(writing("ok"))
    scheduler.files, scheduler.max_model_len = make_files(chat_template=TEMPLATE), 2048
    address = await scheduler.start()
    try:
        async with router_process(tmp_path, address) as (service, client):
            kept = await client.responses.create(model=MODEL, input="Hi")
            scheduler.script = begun
            queued = await client.responses.create(
                model=MODEL, input="And?", previous_response_id=kept.id, background=True
            )
            events = await client.responses.retrieve(queued.id, stream=True)
            seen = [await anext(events) for _ in range(6)]  # up to the first text
            await service.kill()
        async with router_process(tmp_path, address) as (_, client):
            await scheduler.wait_until(lambda: len(scheduler.added) == 3)
            _, before, after = scheduler.added
            assert after.sampling_params.seed == before.sampling_params.seed
            assert after.prompt_token_ids == before.prompt_token_ids
            scheduler.send(end_of(after))
            last = seen[-1].sequence_number
            rest = await client.responses.retrieve(queued.id, stream=True, starting_after=last)
            texts = [getattr(event, "delta", "") for event in [*seen, *[e async for e in rest]]]
            assert "".join(texts) == TEXT
            assert (await client.responses.retrieve(kept.id)).id == kept.id
    finally:
        await scheduler.stop()
