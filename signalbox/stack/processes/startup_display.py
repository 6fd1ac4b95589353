"""Shows the progress of starting processes: a live line on a terminal, log lines elsewhere.

Each phase that ends leaves its line, with the seconds that it took. The live line is drawn below
the last log line and leaves the cursor at its beginning, so that a log line of any process
overwrites it (`signalbox_rpc/telemetry/logs.py` erases the rest of it).
"""

import asyncio
import logging
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from signalbox_contract.startup import ReportProgress, StartupProgress

logger = logging.getLogger(__name__)

REFRESH_S = 0.25
REMIND_S = 10.0
"""Seconds between two log lines of one phase, if standard error is no terminal."""
_ERASE = "\r\x1b[K"


@dataclass(slots=True)
class _Shown:
    """The present phase of a process."""

    progress: StartupProgress
    since: float
    logged_at: float


class StartupDisplay:
    """Shows the progress that the starting processes report."""

    def __init__(
        self,
        stream: TextIO,
        *,
        is_live: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Draws on `stream` if `is_live`, and logs otherwise."""
        self._stream = stream
        self._is_live = is_live
        self._clock = clock
        self._since = clock()
        self._shown: dict[str, _Shown] = {}

    def report(self, name: str, progress: StartupProgress) -> None:
        """Records the progress of the process `name`; an empty name is not shown."""
        now = self._clock()
        shown = self._shown.get(name)
        if shown is not None and shown.progress.phase is progress.phase:
            shown.progress = progress
            if not self._is_live and now - shown.logged_at >= REMIND_S:
                self._log(name, shown, now)
            return
        self._leave_line(name)
        self._shown[name] = shown = _Shown(progress, since=now, logged_at=now)
        if self._is_live:
            self.refresh()
        else:
            logger.info("%s", _named(name, str(progress)))

    def refresh(self) -> None:
        """Draws the live line, or logs phases that take long."""
        now = self._clock()
        if self._is_live:
            columns = shutil.get_terminal_size().columns
            self._write(_ERASE + self._live_line(now)[: columns - 1] + "\r")
            return
        for name, shown in self._shown.items():
            if now - shown.logged_at >= REMIND_S:
                self._log(name, shown, now)

    @asynccontextmanager
    async def refreshed(self) -> AsyncIterator[None]:
        """Updates the times while the context lasts; removes the live line after it."""
        task = asyncio.create_task(self._refresh_for_ever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.close()

    def close(self) -> None:
        """Leaves the line of each unfinished phase; phases that begin later are log lines."""
        for name in list(self._shown):
            self._leave_line(name)
        if self._is_live:
            self._write(_ERASE)
            self._is_live = False

    async def _refresh_for_ever(self) -> None:
        while True:
            self.refresh()
            await asyncio.sleep(REFRESH_S)

    def _live_line(self, now: float) -> str:
        if not self._shown:
            return f"starting ({now - self._since:.0f} s)"
        return "; ".join(_timed(name, shown, now) for name, shown in self._shown.items())

    def _leave_line(self, name: str) -> None:
        shown = self._shown.pop(name, None)
        if shown is not None and self._is_live:
            self._write(_ERASE + _timed(name, shown, self._clock()) + "\n")

    def _log(self, name: str, shown: _Shown, now: float) -> None:
        shown.logged_at = now
        logger.info("%s", _timed(name, shown, now))

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def make_display(*, log_format: str) -> StartupDisplay:
    """Returns the display for standard error: a terminal, or a file of log lines."""
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return StartupDisplay(sys.stderr, is_live=is_terminal and log_format == "text")


@contextmanager
def own_progress() -> Iterator[ReportProgress]:
    """Yields the callback that shows or logs the phases of this process's own start."""
    display = make_display(log_format="text")
    try:
        yield partial(display.report, "")
    finally:
        display.close()


def log_progress() -> ReportProgress:
    """Returns the callback that logs the phases of this process's own start."""
    return partial(StartupDisplay(sys.stderr, is_live=False).report, "")


def _timed(name: str, shown: _Shown, now: float) -> str:
    return _named(name, f"{shown.progress} ({now - shown.since:.0f} s)")


def _named(name: str, text: str) -> str:
    return f"{name}: {text}" if name else text
