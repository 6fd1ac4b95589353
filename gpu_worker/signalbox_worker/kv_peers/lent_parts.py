"""Makes the answers of ReadBlocks: lent blocks in parts, each block with a digest of its bytes."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from signalbox_contract.errors import Aborted
from signalbox_worker.kv_peers.peer_moves import LentBlocks

PART_BYTES = 1 << 20
DIGEST_BYTES = 16
_MOST_BYTES = 1 << 22


class Part(NamedTuple):
    """A part of a block; the last has the digest of the whole."""

    chunk: bytes
    digest: bytes = b""


def digest_of(key: bytes, block: bytes | bytearray) -> bytes:
    """Returns what vouches for the bytes of the block that a hash names."""
    digest = hashlib.sha256(key)
    digest.update(block)
    return digest.digest()[:DIGEST_BYTES]


def blocks_at_once(block_bytes: int) -> int:
    """Returns how many blocks of one move are copied at the same time, on either side.

    Several ranks hand a block over in a chain of messages, in which threads wait for a core.
    """
    return max(2, min(4, _MOST_BYTES // block_bytes))


def _copied(lent: LentBlocks, index: int) -> tuple[bytearray, bytes] | None:
    """Returns a lent block and its digest; None if it is lent no more."""
    block = lent.copy_out(index)
    return (block, digest_of(lent.move.keys[index], block)) if block is not None else None


async def lent_parts(
    lent: LentBlocks, *, is_valid: Callable[[], bool]
) -> AsyncGenerator[Part, None]:
    """Yields the parts of lent blocks, and ends the lend however the reading ends.

    The next blocks are copied while one is sent.

    Args:
        is_valid: whether the lease goes on in which they were lent.

    Raises Aborted if the lend ends meanwhile.
    """
    num_blocks, copying = len(lent.move.keys), deque[asyncio.Task[tuple[bytearray, bytes] | None]]()
    at_once = blocks_at_once(lent.block_bytes)
    try:
        for index in range(num_blocks):
            while len(copying) < min(at_once, num_blocks - index):
                copy = asyncio.to_thread(_copied, lent, index + len(copying))
                copying.append(asyncio.create_task(copy))
            copied = await copying.popleft()
            if copied is None or not is_valid():
                raise Aborted("these blocks are lent no more")
            block, digest = copied
            for start in range(0, len(block), PART_BYTES):
                end = start + PART_BYTES
                yield Part(bytes(block[start:end]), digest if end >= len(block) else b"")
            lent.move.kept(index, len(block))
    finally:
        lent.move.end("the reader has left")
        for task in copying:
            task.cancel()
