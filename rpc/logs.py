"""Log lines as people or collectors read them, each with the request and the trace that it is of.

Whoever works for a request says so in context variables, which the tasks and threads that it starts
inherit; a line takes them from there. Prompts and outputs are never put into a line here.
"""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime

from rpc import trace_ids

FORMATS = ("text", "json")
CHATTY = ("httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub", "asyncio", "grpc")

_request_id: ContextVar[str] = ContextVar("request_id", default="")
_trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def configure(*, service: str, level: str, log_format: str) -> None:
    """Sends log lines to standard error; to be called once in a process.

    Args:
        service: what the lines are named with.
        log_format: "text" or "json".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(service, log_format))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)


def formatter(service: str, log_format: str) -> logging.Formatter:
    """Returns what makes lines of records."""
    return _Json(service) if log_format == "json" else _Text(service)


def begin_request(request_id: str, trace_id: str) -> None:
    """Says whose lines those of this task are from now on."""
    _request_id.set(request_id)
    _trace_id.set(trace_id)


@contextlib.contextmanager
def of_request(request_id: str, traceparent: str) -> Iterator[None]:
    """Says whose lines those of the block are; it must not await."""
    tokens = _request_id.set(request_id), _trace_id.set(trace_ids.of_traceparent(traceparent))
    try:
        yield
    finally:
        _request_id.reset(tokens[0])
        _trace_id.reset(tokens[1])


def _ids() -> dict[str, str]:
    ids = {
        "request_id": _request_id.get(),
        "trace_id": _trace_id.get() or trace_ids.of_context(),
    }
    return {name: value for name, value in ids.items() if value}


class _Text(logging.Formatter):
    """Time, service, message; then the ids, if there are any."""

    def __init__(self, service: str) -> None:
        super().__init__(f"%(asctime)s {service:<9} %(message)s", datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _printable(record.message)
        ids = "".join(f" {name}={value}" for name, value in _ids().items())
        return super().formatMessage(record) + ids


def _printable(message: str) -> str:
    """Escapes what would move a terminal's cursor or begin a line: a client may have sent it."""
    if message.isprintable():
        return message
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in message
    )


class _Json(logging.Formatter):
    """One object a line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            "message": record.getMessage(),
            **_ids(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
