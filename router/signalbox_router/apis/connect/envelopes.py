"""Messages in a body: a byte of flags, four of length and the bytes, as gRPC has them too."""

import base64
import gzip
import re
from collections.abc import AsyncIterator

from signalbox_contract.errors import InvalidArgument, ResourceExhausted, Unimplemented
from signalbox_router.apis.openai.bodies.content_coding import CODINGS, decoded
from signalbox_router.apis.openai.requests.errors import BadRequest, BodyTooLarge

HEAD_BYTES = 5
COMPRESSED = 1
"""Flag of a message that is compressed."""
MIN_COMPRESSED_BYTES = 1024
"""Bytes of the shortest message that is worth compressing; those of most streams are shorter."""
IDENTITY, GZIP = "identity", "gzip"
_LEVEL = 1
_BASE64 = re.compile(rb"[A-Za-z0-9+/]+={0,2}")


def enclosed(data: bytes, flags: int = 0) -> bytes:
    """Returns the bytes of a message in a body."""
    return flags.to_bytes(1) + len(data).to_bytes(4) + data


async def only_message(body: bytes, coding: str, *, max_bytes: int) -> bytes:
    """Returns the one message of a body, decompressed.

    Raises InvalidArgument, or ResourceExhausted if it has more bytes than allowed.
    """
    length = int.from_bytes(body[1:HEAD_BYTES])
    if len(body) < HEAD_BYTES or len(body) - HEAD_BYTES < length:
        found = f"{len(body)} bytes" if body else "nothing"
        raise InvalidArgument("request", found, "one whole message behind its length")
    if len(body) - HEAD_BYTES > length:
        raise InvalidArgument("request", "more than one message", "one")
    flags, data = body[0], body[HEAD_BYTES:]
    if flags & ~COMPRESSED:
        raise InvalidArgument("request", f"flags {flags:#x}", "0, or 1 if it is compressed")
    return await decompressed(data, coding, max_bytes=max_bytes) if flags else data


async def decompressed(data: bytes, coding: str, *, max_bytes: int) -> bytes:
    """Returns a message without its compression."""
    if coding not in CODINGS:
        raise InvalidArgument("request", "a compressed message", f"{GZIP}, named in the headers")
    content = bytearray()
    try:
        async for part in decoded(_once(data), max_bytes):
            content += part
            if len(content) > max_bytes:
                raise BodyTooLarge(f"the message has more than {max_bytes} bytes")
    except BodyTooLarge as error:
        raise ResourceExhausted(error.message) from None
    except BadRequest as error:
        raise InvalidArgument("request", None, reason=error.message) from None
    return bytes(content)


async def _once(data: bytes) -> AsyncIterator[bytes]:
    yield data


def check_coding(coding: str) -> None:
    """Raises Unimplemented for a coding that is not decoded."""
    if coding not in (IDENTITY, *CODINGS):
        raise Unimplemented(f"messages are read as they are or with {GZIP}, not {coding[:100]!r}")


def compressed(data: bytes) -> bytes:
    return gzip.compress(data, _LEVEL, mtime=0)


def from_text(body: bytes) -> bytes:
    """Decodes base64 that may consist of several parts, each with its own padding."""
    text = b"".join(body.split())
    parts = _BASE64.findall(text)
    if sum(map(len, parts)) != len(text) or any(len(part) % 4 for part in parts):
        raise InvalidArgument("request", None, "base64, as application/grpc-web-text has it")
    return b"".join(map(base64.b64decode, parts))
