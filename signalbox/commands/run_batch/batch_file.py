"""Reads a batch file: requests as lines of JSON, in the form of OpenAI's and vLLM's batch files.

{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Once upon"}}
"""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from signalbox.client.named_files import reading

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/embed",
    "/v2/embed",
    "/v1/score",
    "/score",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/classify",
    "/pooling",
)
"""Paths that a request may have: APIs that answer a prompt, and change nothing."""
_FIELDS = ("custom_id", "method", "url", "body")


class BadBatchLine(ValueError):
    """A line is not a valid request; the message gives the line and the reason."""


class BatchRequest(NamedTuple):
    """Place of a request in its file, which may be larger than memory."""

    custom_id: str
    answer_id: str
    """Id of its answer, a hash of the request: another one has another id."""
    offset: int
    num_bytes: int


def find_requests(path: Path) -> list[BatchRequest]:
    """Returns the requests of a file, in their order. Raises ValueError if one is not valid."""
    found: dict[str, BatchRequest] = {}
    with reading(path):
        for number, (offset, line) in enumerate(_lines(path), start=1):
            if not line.strip():
                continue
            try:
                content = json.loads(line)
                custom_id = _check(content)
                if custom_id in found:
                    raise ValueError(f"an earlier line has the custom_id {custom_id[:40]!r}, too")
            except (ValueError, RecursionError) as error:
                raise BadBatchLine(f"{path}, line {number}: {error}") from None
            found[custom_id] = BatchRequest(custom_id, _answer_id(content), offset, len(line))
    if not found:
        raise ValueError(f"{path} has no requests")
    return list(found.values())


def read_request(path: Path, request: BatchRequest) -> tuple[str, dict[str, Any]]:
    """Returns the path and the body of a request. Raises ValueError."""
    with reading(path), path.open("rb") as file:
        file.seek(request.offset)
        line = file.read(request.num_bytes)
    try:
        content = json.loads(line)
        _check(content)
        if _answer_id(content) == request.answer_id:
            return content["url"], content["body"]
    except ValueError:
        pass
    raise ValueError(f"{path} has changed since it was read; start again")


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    offset = 0
    with path.open("rb") as file:
        for line in file:
            yield offset, line
            offset += len(line)


def _answer_id(content: dict[str, Any]) -> str:
    """Returns the id of an answer; the order of a request's fields makes no difference."""
    text = json.dumps(content, sort_keys=True)
    return f"batch_req_{blake2b(text.encode(), digest_size=16).hexdigest()}"


def _check(content: Any) -> str:
    """Returns the id of a request. Raises ValueError if it is not valid."""
    if not isinstance(content, dict):
        raise ValueError("expected a JSON object")
    if missing := [name for name in _FIELDS if name not in content]:
        raise ValueError(f"{missing[0]} is missing")
    if unknown := content.keys() - set(_FIELDS):
        raise ValueError(f"{min(unknown)[:40]!r} is not a field of a batch request")
    custom_id, method, url, body = (content[name] for name in _FIELDS)
    if not isinstance(custom_id, str) or not custom_id:
        raise ValueError("custom_id is not a string, or is empty")
    if method != "POST":
        raise ValueError("method is not POST")
    if url not in ENDPOINTS:
        raise ValueError(f"url is not one of {', '.join(ENDPOINTS)}")
    if not isinstance(body, dict):
        raise ValueError("body is not a JSON object")
    for name in ("stream", "background"):
        if body.get(name):
            raise ValueError(f"body.{name} is set, which a batch does not support")
    return custom_id
