"""Routers of default configuration over a fake scheduler."""

from collections.abc import AsyncIterator

import pytest

from tests.router.openai.clients import Http, make_http
from tests.router.stack import Stack, make_stack


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
