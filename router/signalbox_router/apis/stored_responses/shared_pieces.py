"""Cuts what grows from turn to turn into pieces that the responses of a tenant share.

The items and the tokens of a turn begin with those of the turn before. A piece has a fixed size and
is named by its content, so equal beginnings have equal pieces, and a store keeps each piece once
for as long as any response uses it.
"""

import zlib
from hashlib import blake2b
from typing import NamedTuple

PIECE_BYTES = 8 << 10
USE_BYTES = 32
"""Bytes that a store needs for a response to use a piece."""
_LEVEL = 1


class SharedPiece(NamedTuple):
    """A piece, compressed."""

    name: bytes
    content: bytes


def compress(content: bytes) -> bytes:
    return zlib.compress(content, level=_LEVEL)


def cut(content: bytes, *, tenant: str) -> tuple[list[SharedPiece], bytes]:
    """Returns the pieces of a content, and its rest, which is shorter than a piece. Pieces of
    different tenants never have the same name."""
    key = blake2b(tenant.encode()).digest()
    starts = range(0, len(content) - PIECE_BYTES + 1, PIECE_BYTES)
    pieces = [_piece(content[start : start + PIECE_BYTES], key) for start in starts]
    return pieces, content[len(pieces) * PIECE_BYTES :]


def _piece(content: bytes, key: bytes) -> SharedPiece:
    return SharedPiece(blake2b(content, digest_size=16, key=key).digest(), compress(content))
