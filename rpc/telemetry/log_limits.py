"""Bounds the warnings and errors of one kind in the log, because a client may cause any number."""

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

BURST_LINES = 20
"""Lines of one kind that are written at once."""
PERIOD_S = 1.0
"""Seconds after which one more line may be written. A line with a traceback has about 2 KB."""
MAX_KINDS = 256
"""Kinds that are remembered. Messages are constants of the code, which has fewer warnings."""
MAX_KIND_CHARS = 60
"""Characters of a message, before its values are put in, by which kinds are told apart. asyncio
puts values into the message itself, behind the first words."""

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


class LimitedHandler(logging.StreamHandler):  # type: ignore[type-arg]  # of standard error
    """Writes to standard error the lines that pass."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._limit = LineLimit()

    def emit(self, record: logging.LogRecord) -> None:
        if self._limit.passes(record):
            if (note := self._limit.left_out(record)) is not None:
                super().emit(note)
            super().emit(record)
