"""Routers of default configuration over a fake scheduler."""

from collections.abc import AsyncIterator

import pytest

from signalbox_router.schedulers import scheduler_client
from tests.router.apis.openai.clients import Http, make_http
from tests.router.stack import Stack, make_stack


@pytest.fixture(autouse=True)
def reconnect_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the pause before a router dials a scheduler again, which many tests wait for."""
    monkeypatch.setattr(scheduler_client, "RECONNECT_AFTER_S", 0.02)


@pytest.fixture
async def stack() -> AsyncIterator[Stack]:
    """A router whose scheduler answers when the test says so."""
    async with make_stack() as stack:
        yield stack


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    """A router that answers every request with "ok", over HTTP too."""
    async with make_http() as http:
        yield http
