"""No value of a call's metadata is logged, at any level, by us or by a library."""

import asyncio
from pathlib import Path

import pytest

from tests.chaos.hostile import (
    DATA,
    EMPTY_MESSAGE,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HTTP2_PREFACE,
    SETTINGS,
    frame,
    header,
    headers,
)
from tests.router.limits.router_process import entries, router_process

SECRET = b"sb-planted"
MODEL = b"/signalbox.inference.v1.InferenceService/GetModel"
KNOWN = (b"authorization", b"Bearer known")
METADATA = [
    (name, value)
    for name in (b"authorization", b"x-api-key", b"cookie", b"user-agent", b"x-signalbox-tenant")
    for value in (b"Bearer " + SECRET, b"Bearer \xff" + SECRET, b"\0" + SECRET, SECRET * 10)
] + [
    (name, value + SECRET)
    for name in (b"authorization-bin", b"grpc-timeout", b"grpc-encoding", b"te", b"traceparent")
    for value in (b"", b"!\xff")
]
HEADS = [
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer \xff%s",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: %s\r\nCookie: %s",
    b"GET /v1/models?api_key=%s HTTP/1.1\r\nHost: localhost",
    b"GET http://user:%s@localhost/v1/models HTTP/1.1\r\nHost: localhost",
    b"GET /v1/models HTTP/1.1\r\nHost: user:%s@elsewhere",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://user:%s@elsewhere",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nApi Key: %s",
    b"GET /v1/realtime HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket"
    b"\r\nSec-WebSocket-Protocol: openai-insecure-api-key.%s",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %s",
]


def call(*metadata: tuple[bytes, bytes], path: bytes = MODEL) -> bytes:
    """Returns the bytes of a connection with one call."""
    block = headers(path) + b"".join(header(name, value) for name, value in metadata)
    return (
        HTTP2_PREFACE
        + frame(SETTINGS)
        + frame(HEADERS, block, flags=END_HEADERS, stream=1)
        + frame(DATA, EMPTY_MESSAGE, flags=END_STREAM, stream=1)
    )


@pytest.mark.parametrize("log_format", ["text", "json"])
async def test_no_secret_that_a_client_sends_is_in_the_log(tmp_path: Path, log_format: str) -> None:
    flags = ("--log-level=debug", f"--log-format={log_format}", "--log-requests=prompts")
    text = entries("known")
    async with router_process(tmp_path, text, "--trust-tenant-header", *flags) as router:
        port = router.service.port
        calls = [call(one, KNOWN) for one in METADATA] + [call(one) for one in METADATA]
        calls += [call(path=b"/\xff" + SECRET + b"/x"), call(KNOWN, path=b"/" + SECRET + b"/x")]
        await asyncio.gather(*(router.send(port, one) for one in calls))
        for head in HEADS:
            await router.send(router.http_port, head.replace(b"%s", SECRET) + b"\r\n\r\n")
        for broken in (
            '- name: "%s',
            "- {name: a, sha256: %s}",
            "- {name: a, tokens_per_minute: %s}",
        ):
            router.keys.write_text(text + broken % SECRET.decode())
            assert await router.knows("known")
        written = router.log.read_bytes()
        assert SECRET not in written
