"""Bodies that are sent with gzip, or with what is no gzip."""

import gzip
import json
import zlib
from collections.abc import AsyncIterator

import pytest

from signalbox_router.apis.openai.bodies import content_coding
from tests.router.apis.openai.clients import Http, make_http

BODY = json.dumps({"prompt": "Hi " * 100}).encode()
CODED = gzip.compress(BODY)
BOMB = gzip.compress(b" " * (64 << 20))
EMPTY = gzip.compress(b"")


async def status_and_error(http: Http, content: bytes, coding: str) -> tuple[int, str]:
    headers = {"content-encoding": coding, "content-type": "application/json"}
    answer = await http.raw.post("/tokenize", content=content, headers=headers)
    if answer.status_code == 415:
        assert answer.headers["accept-encoding"] == "gzip, identity"
    return answer.status_code, answer.json().get("error", {}).get("message", "")


@pytest.mark.parametrize(
    ("content", "coding"),
    [
        (CODED, "gzip"),
        (CODED, "X-GZIP"),
        (gzip.compress(BODY[:10]) + gzip.compress(BODY[10:]) + EMPTY, "gzip"),
        (gzip.compress(BODY + b" " * (2 * content_coding.SLICE_BYTES)), "gzip"),
        (BODY, "identity"),
        (BODY, ""),
    ],
    ids=["gzip", "its old name", "several members", "many slices", "identity", "no coding"],
)
async def test_a_coded_body_means_what_it_decodes_to(
    http: Http, content: bytes, coding: str
) -> None:
    assert await status_and_error(http, content, coding) == (200, "")


@pytest.mark.parametrize(
    ("content", "coding", "status", "reason"),
    [
        (CODED, "br", 415, "'br'"),
        (zlib.compress(BODY), "deflate", 415, "'deflate'"),
        (gzip.compress(CODED), "gzip, gzip", 415, "'gzip, gzip'"),
        (BODY, "gzip", 400, "not valid gzip"),
        (CODED[:-1], "gzip", 400, "ends too early"),
        (CODED[:-8] + bytes(8), "gzip", 400, "not valid gzip"),
        (CODED + b"more", "gzip", 400, "not valid gzip"),
        (EMPTY * 2000, "gzip", 400, "members"),
        (BOMB, "gzip", 413, "more than 8388608 bytes"),
    ],
    ids=[
        *("br", "deflate", "twice", "not coded", "cut", "wrong checksum", "more behind it"),
        *("many members", "a bomb"),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_refused(
    http: Http, content: bytes, coding: str, status: int, reason: str
) -> None:
    found, message = await status_and_error(http, content, coding)
    assert found == status
    assert reason in message


async def test_no_more_is_decoded_than_a_body_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    num_decoded, decoded = 0, content_coding.decoded

    async def counted(coded: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[bytes]:
        nonlocal num_decoded
        async for part in decoded(coded, max_bytes):
            num_decoded += len(part)
            yield part

    monkeypatch.setattr(content_coding, "decoded", counted)
    async with make_http(max_http_body_bytes=1 << 20) as http:
        assert (await status_and_error(http, BOMB, "gzip"))[0] == 413
        assert num_decoded <= (1 << 20) + content_coding.SLICE_BYTES
        empty_blocks = BOMB[:10] + b"\0\0\0\xff\xff" * (1 << 18)  # much work for no bytes
        assert (await status_and_error(http, empty_blocks, "gzip"))[0] == 413
