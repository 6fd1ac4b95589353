"""Makes the answers of ReadBlocks: lent blocks in parts, each block with a digest of its bytes."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from contract.errors import Aborted
from gpu_worker.kv_peers.peer_moves import LentBlocks

PART_BYTES = 1 << 20
DIGEST_BYTES = 16


class Part(NamedTuple):
    """A part of a block; the last has the digest of the whole."""

    chunk: bytes
    digest: bytes = b""


def digest_of(key: bytes, block: bytes | bytearray) -> bytes:
    """Returns what vouches for the bytes of the block that a hash names."""
    digest = hashlib.sha256(key)
    digest.update(block)
    return digest.digest()[:DIGEST_BYTES]


async def lent_parts(
    lent: LentBlocks, *, is_valid: Callable[[], bool]
) -> AsyncGenerator[Part, None]:
    """Yields the parts of lent blocks, and ends the lend however the reading ends.

    Args:
        is_valid: whether the lease goes on in which they were lent.

    Raises Aborted if the lend ends meanwhile.
    """
    try:
        for index, key in enumerate(lent.move.keys):
            block = await asyncio.to_thread(lent.copy_out, index) if is_valid() else None
            if block is None:
                raise Aborted("these blocks are lent no more")
            digest = await asyncio.to_thread(digest_of, key, block)
            for start in range(0, len(block), PART_BYTES):
                end = start + PART_BYTES
                yield Part(bytes(block[start:end]), digest if end >= len(block) else b"")
            lent.move.kept(index, len(block))
    finally:
        lent.move.end("the reader has left")
