"""Iterates over long lists in pieces, between which the event loop runs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TypeVar

PIECE = 1 << 13
"""Items that are processed in one turn of the event loop. Writing a token's text takes about 1
us."""

T = TypeVar("T")


async def in_pieces(items: Sequence[T], *, length: int = PIECE) -> AsyncIterator[Sequence[T]]:
    """Yields consecutive pieces of a list or a text."""
    for start in range(0, len(items), length):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + length]
