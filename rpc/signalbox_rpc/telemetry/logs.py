"""Log lines for people and for collectors, each with the ids of its request and of its trace.

A task that serves a request stores the ids in context variables, which the tasks and threads that
it starts inherit; the formatters read them there. No prompt and no output of a model is logged.

An event with numbers is logged with named fields: `logger.info("worker joined: %(num_blocks)d
blocks", {"num_blocks": 728})`. The text formatter writes the sentence. The JSON formatter writes
the words before the first colon as the message, and the fields as members of the object.

No metadata of a call is logged: an API key may be in any header. Debug lines of libraries are left
out, because they repeat headers and addresses with passwords, and a library's complaint about bytes
that it cannot decode is written without them.
"""

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ClassVar

from signalbox_rpc.telemetry import trace_ids
from signalbox_rpc.telemetry.log_limits import LimitedHandler
from signalbox_rpc.telemetry.printable import printable

FORMATS = ("text", "json")
MAX_TEXT_CHARS = 4096
"""Characters of a message, or of one of its fields; prompts that are to be logged are whole."""
MAX_EXCEPTION_CHARS = 16_384
"""Characters of a traceback."""
CHATTY = ("httpx", "httpx2", "httpcore", "httpcore2", "huggingface_hub", "asyncio", "grpc")
"""Loggers of libraries whose INFO lines do not help an operator."""
ABORTS = "grpc._cython.cygrpc"
"""Logger with which gRPC warns of each call that a stopping server cuts off, as expected."""

_request_id: ContextVar[str] = ContextVar("request_id", default="")
_trace_id: ContextVar[str] = ContextVar("trace_id", default="")


def configure(*, service: str, level: str, log_format: str) -> None:
    """Sends log lines to standard error; to be called once in a process.

    Args:
        service: what the lines are named with.
        log_format: "text" or "json".
    """
    handler = LimitedHandler()
    in_colour = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    handler.setFormatter(formatter(service, log_format, in_colour=in_colour))
    if log_format == "text" and sys.stderr.isatty():
        handler.terminator = "\x1b[K\n"  # erases the rest of a live line that it overwrites
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for chatty in CHATTY:
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger(ABORTS).setLevel(logging.ERROR)


def formatter(service: str, log_format: str, *, in_colour: bool = False) -> logging.Formatter:
    """Returns the formatter of the service's log lines; `in_colour` is for text on a terminal."""
    return _Json(service) if log_format == "json" else _Text(service, in_colour=in_colour)


def begin_request(request_id: str, trace_id: str) -> None:
    """Sets the ids of this task's log lines from now on."""
    _request_id.set(request_id)
    _trace_id.set(trace_id)


@contextlib.contextmanager
def of_request(request_id: str, traceparent: str) -> Iterator[None]:
    """Sets the ids of the block's log lines; the block must not await."""
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


class _Bounded(logging.Formatter):
    """Cuts what a peer may have made long: a message, and what an exception says."""

    def formatException(self, ei: Any) -> str:
        return _cut(super().formatException(ei), MAX_EXCEPTION_CHARS)


def _cut(text: str, most: int) -> str:
    """Returns the text without its middle, if it is too long: an exception's words come last."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}... {len(text) - 2 * half} characters ...{text[-half:]}"


def _bound(record: logging.LogRecord) -> int:
    return sys.maxsize if getattr(record, "is_whole", False) else MAX_TEXT_CHARS


class _Text(_Bounded):
    """Writes time, service, level unless it is INFO, and message; then the ids, if there are
    any."""

    _COLOURS: ClassVar = {"WARNING": "33", "ERROR": "31", "CRITICAL": "1;31", "DEBUG": "2"}
    """SGR parameters of ANSI X3.64 for each level that is written."""

    def __init__(self, service: str, *, in_colour: bool) -> None:
        super().__init__(f"%(asctime)s {service:<9} %(message)s", datefmt="%H:%M:%S")
        self._in_colour = in_colour

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = printable(_cut(record.message, _bound(record)))
        record.message = self._level(record.levelname) + text
        ids = "".join(f" {name}={value}" for name, value in _ids().items())
        return super().formatMessage(record) + ids

    def _level(self, name: str) -> str:
        if name == "INFO":
            return ""
        if self._in_colour and (colour := self._COLOURS.get(name)):
            return f"\x1b[{colour}m{name}\x1b[0m "
        return f"{name} "


class _Json(_Bounded):
    """Writes one JSON object per line."""

    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "service": self._service,
            "logger": record.name,
            **_message(record),
            **_ids(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _message(record: logging.LogRecord) -> dict[str, Any]:
    """Returns an event's name and its fields, or the message of a line without named fields."""
    most = _bound(record)
    if isinstance(record.args, Mapping):
        fields = {
            name: _cut(value, most) if isinstance(value, str) else value
            for name, value in record.args.items()
        }
        return {"message": record.msg.partition(":")[0], **fields}
    return {"message": _cut(record.getMessage(), most)}
