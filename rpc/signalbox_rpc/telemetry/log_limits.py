"""Bounds what a peer can write into the log: lines of one kind, and bytes that it has sent."""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

OURS = (
    "signalbox_contract",
    "signalbox_rpc",
    "signalbox_router",
    "signalbox_scheduler",
    "signalbox_worker",
    "signalbox",
)
"""Packages whose debug lines and tracebacks are written as they are."""
BURST_LINES = 20
"""Lines of one kind that are written at once."""
PERIOD_S = 1.0
"""Seconds after which one more line may be written. A line with a traceback has about 2 KB."""
MAX_KINDS = 256
"""Kinds that are remembered. Messages are constants of the code, which has fewer warnings."""
MAX_KIND_CHARS = 60
"""Characters of a message, before its values are put in, by which kinds are told apart. asyncio
puts values into the message itself, behind the first words."""

_CORE = "grpc._cython.cygrpc"
"""Module of the errors that gRPC raises within itself."""

MAX_SAID_CHARS = 200
"""Characters of a complaint about a peer."""

Kind = tuple[str, int, str]


@dataclass(slots=True)
class _Count:
    """Lines of one kind."""

    room: float
    """Lines that may be written now."""
    at: float
    """Time of the clock when `room` was last updated."""
    num_left_out: int = 0


class LineLimit:
    """Decides which records are written; records below WARNING always are."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[Kind, _Count] = {}

    def passes(self, record: logging.LogRecord) -> bool:
        """Returns whether a record may be written; counts it as left out if not."""
        if record.levelno < logging.WARNING:
            return True
        count = self._count_of(record)
        now = self._clock()
        count.room = min(BURST_LINES, count.room + (now - count.at) / PERIOD_S)
        count.at = now
        if count.room < 1:
            count.num_left_out += 1
            return False
        count.room -= 1
        return True

    def left_out(self, record: logging.LogRecord) -> logging.LogRecord | None:
        """Returns a record with the number of lines of this kind that were left out, or None."""
        if record.levelno < logging.WARNING or not (count := self._count_of(record)).num_left_out:
            return None
        number, count.num_left_out = count.num_left_out, 0
        return logging.makeLogRecord(
            {
                "name": __name__,
                "levelno": record.levelno,
                "levelname": record.levelname,
                "msg": "log lines left out: %(number)d like the next one",
                "args": {"number": number},
            }
        )

    def _count_of(self, record: logging.LogRecord) -> _Count:
        kind = (record.name, record.levelno, str(record.msg)[:MAX_KIND_CHARS].partition("\n")[0])
        if (count := self._counts.get(kind)) is None:
            if len(self._counts) >= MAX_KINDS:
                self._counts.pop(next(iter(self._counts)))
            count = self._counts[kind] = _Count(BURST_LINES, self._clock())
        return count


def without_peers_bytes(record: logging.LogRecord) -> logging.LogRecord:
    """Returns a library's complaint about what a peer has sent as one line, without the bytes.

    gRPC logs the values of metadata that it cannot decode, which may hold an API key, and
    tracebacks of its own about calls that end before their status is written.
    """
    error = record.exc_info[1] if record.exc_info else None
    is_undecoded = isinstance(error, UnicodeError)
    is_of_peer = is_undecoded or type(error).__module__ == _CORE
    if not is_of_peer or _is_ours(record):
        return record
    said = "text of a peer is not UTF-8" if is_undecoded else record.getMessage()[:MAX_SAID_CHARS]
    return logging.makeLogRecord(
        {"name": record.name, "levelno": logging.WARNING, "levelname": "WARNING", "msg": said}
    )


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in OURS


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # of standard error
    """Writes to standard error the lines that pass."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.INFO and not _is_ours(record):
            return
        record = without_peers_bytes(record)
        if self._limit.passes(record):
            if (note := self._limit.left_out(record)) is not None:
                super().emit(note)
            super().emit(record)
