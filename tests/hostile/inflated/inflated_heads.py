"""Inflates what stands before a body: path, query and headers over HTTP, metadata over gRPC."""

from collections.abc import Callable, Iterator

from tests.hostile.inflated.inflated_fields import LONG, Inflated, Shape, filled

HEADERS = (
    "authorization", "x-api-key", "x-request-id", "x-signalbox-tenant", "traceparent", "tracestate",
    "accept", "content-type", "origin", "cookie", "x-unknown",
)  # fmt: skip
"""Those that the router reads, and others."""
LISTS = {"commas": "a,", "semicolons": "a;q=0.1,", "pairs": "a=1,", "parameters": "a/b;c=d;"}
"""What a list within one header may be made of."""
PATHS = ("/v1/models", "/v1/completions", "/metrics")
HELLO = b'{"prompt":"Hello","max_tokens":1}'


def inflated_heads() -> Iterator[Inflated]:
    """Yields whole HTTP requests as bytes, to be written to a connection as they are."""
    for path in PATHS:
        for variant, piece in LONG.items():
            query = "".join(f"%{byte:02x}" for byte in piece.encode())
            yield _head(path, "path", "long", variant, _line(f"{path}/", query))
            yield _head(path, "query", "long", variant, _line(f"{path}?a=", query))
        yield _head(path, "path", "deep", "folders", _line(path, "/.."))
        yield _head(path, "query", "repeated", "one name", _line(f"{path}?", "a=1&"))
        for name in HEADERS:
            for variant, piece in {"letters": "a", **LISTS}.items():
                shape: Shape = "long" if variant == "letters" else "wide"
                yield _head(path, name, shape, variant, _header(path, name, piece))
            yield _head(path, name, "repeated", "headers", _headers(path, name, is_one=True))
        yield _head(path, "(headers)", "wide", "names", _headers(path, "x", is_one=False))


def _head(
    path: str, field: str, shape: Shape, variant: str, make: Callable[[int], bytes]
) -> Inflated:
    return Inflated(path, field, shape, variant, make, is_grpc=False, is_whole=True)


def _request(path: str, target: str, headers: str = "") -> bytes:
    method, body = ("POST", HELLO) if path.endswith("completions") else ("GET", b"")
    kind = "" if "content-type:" in headers else "Content-Type: application/json\r\n"
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{kind}"
        f"Content-Length: {len(body)}\r\n{headers}\r\n"
    )
    return head.encode() + body


def _line(start: str, piece: str) -> Callable[[int], bytes]:
    path = start.partition("?")[0].rstrip("/")
    return lambda size: _request(path, start + filled(piece, size))


def _header(path: str, name: str, piece: str) -> Callable[[int], bytes]:
    return lambda size: _request(path, path, f"{name}: {filled(piece, size)}\r\n")


def _headers(path: str, name: str, *, is_one: bool) -> Callable[[int], bytes]:
    def make(size: int) -> bytes:
        number = max(1, size // (len(name) + 10))
        names = (name if is_one else f"{name}-{i}" for i in range(number))
        return _request(path, path, "".join(f"{one}: 1\r\n" for one in names))

    return make
