"""Decodes bodies that are sent with `Content-Encoding: gzip`; refuses other codings.

A few bytes of gzip may stand for a thousand times as many. So the decoded bytes are bounded as
those of a plain body are, and made in slices, between which other requests have the event loop.
"""

import asyncio
import zlib
from collections.abc import AsyncIterator

from starlette.requests import Request

from signalbox_router.apis.openai.requests.errors import BadRequest, BodyTooLarge, UnsupportedCoding

CODINGS = ("gzip", "x-gzip")
"""Names of the coding that is decoded (RFC 9110, 8.4.1.3)."""
SLICE_BYTES = 256 << 10
"""Bytes that are decoded at a time, which takes about 1 ms."""
MAX_MEMBERS = 1024
"""Members of a gzip body: each begins with an empty window, and none need have content."""
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


def body_of(request: Request, *, max_bytes: int) -> AsyncIterator[bytes]:
    """Yields the decoded body, at most a slice more than `max_bytes`, which its caller bounds.

    Raises UnsupportedCoding, BodyTooLarge if more bytes than that are sent, and BadRequest for
    bytes that are no gzip.
    """
    given = ",".join(request.headers.getlist("content-encoding")).split(",")
    codings = [name for one in given if (name := one.strip().lower()) not in ("", "identity")]
    if not codings:
        return request.stream()
    if len(codings) > 1 or codings[0] not in CODINGS:
        raise UnsupportedCoding(
            "Content-Encoding: a body is read as it is, or with one coding, which is gzip; the"
            f" request says {', '.join(codings)[:100]!r}"
        )
    return decoded(request.stream(), max_bytes)


async def decoded(coded: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
    """Yields the bytes that gzip stands for, with the bounds and errors of `body_of`."""
    member, num_members, num_coded = zlib.decompressobj(_GZIP_WINDOW), 1, 0
    async for rest in coded:
        num_coded += len(rest)
        if num_coded > max_bytes:
            raise BodyTooLarge(f"the body has more than {max_bytes} bytes")
        while rest:
            if member.eof:
                member, num_members = zlib.decompressobj(_GZIP_WINDOW), num_members + 1
            if num_members > MAX_MEMBERS:
                raise BadRequest(f"the body has more than {MAX_MEMBERS} members of gzip")
            try:
                part = member.decompress(rest, SLICE_BYTES)
            except zlib.error as error:
                raise BadRequest(f"the body is not valid gzip: {error}") from None
            rest = member.unused_data if member.eof else member.unconsumed_tail
            yield part
            if rest:
                await asyncio.sleep(0)
    if num_coded and not member.eof:
        raise BadRequest("the body is not valid gzip: it ends too early")
