"""Makes the answers of ReadBlocks: parts of exported blocks, each block with a digest."""

import asyncio
import hashlib
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from signalbox_contract.errors import Aborted
from signalbox_worker.kv.store.transfer import ExportedBlocks

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
    """Returns how many blocks of one transfer are copied at the same time, on either side.

    Several processes hand a block over in a chain of messages, in which threads wait for a core.
    """
    return max(2, min(4, _MOST_BYTES // block_bytes))


def _copied(exported: ExportedBlocks, index: int) -> tuple[bytearray, bytes] | None:
    """Returns an exported block and its digest; None if it is exported no more."""
    block = exported.copy_out(index)
    return (block, digest_of(exported.transfer.keys[index], block)) if block is not None else None


async def exported_parts(
    exported: ExportedBlocks, *, is_valid: Callable[[], bool]
) -> AsyncGenerator[Part, None]:
    """Yields the parts of exported blocks, and ends the export however the reading ends.

    The next blocks are copied while one is sent.

    Args:
        is_valid: whether the lease goes on in which they were exported.

    Raises Aborted if the export ends meanwhile.
    """
    copying = deque[asyncio.Task[tuple[bytearray, bytes] | None]]()
    num_blocks = len(exported.transfer.keys)
    at_once = blocks_at_once(exported.transfer.block_bytes)
    try:
        for index in range(num_blocks):
            while len(copying) < min(at_once, num_blocks - index):
                copy = asyncio.to_thread(_copied, exported, index + len(copying))
                copying.append(asyncio.create_task(copy))
            copied = await copying.popleft()
            if copied is None or not is_valid():
                raise Aborted("these blocks are exported no more")
            block, digest = copied
            for start in range(0, len(block), PART_BYTES):
                end = start + PART_BYTES
                yield Part(bytes(block[start:end]), digest if end >= len(block) else b"")
            exported.transfer.kept(index, len(block))
    finally:
        exported.transfer.end("the reader has left")
        for task in copying:
            task.cancel()
