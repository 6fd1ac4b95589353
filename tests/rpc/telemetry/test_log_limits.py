"""What a flood of one kind of warning leaves in the log, and that it hides nothing else."""

import asyncio
import io
import logging

import pytest

from signalbox_rpc.telemetry import log_limits, logs
from signalbox_rpc.telemetry.log_limits import LimitedHandler, LineLimit
from tests.clock import Clock


def record_of(message: str, level: int = logging.WARNING, *values: object) -> logging.LogRecord:
    return logging.LogRecord("a.b", level, __file__, 1, message, values, None)


def test_a_flood_of_warnings_is_a_few_lines_and_a_number() -> None:
    clock = Clock()
    limit = LineLimit(clock)
    passed = 0
    for i in range(10_000):
        clock.now = i / 1000
        passed += limit.passes(record_of("refused %s", logging.WARNING, i))
    assert passed == log_limits.BURST_LINES + 9
    clock.now = 100.0
    last = record_of("refused %s", logging.WARNING, "again")
    assert limit.passes(last)
    note = limit.left_out(last)
    assert note is not None
    assert note.getMessage() == f"log lines left out: {10_000 - passed} like the next one"
    assert limit.left_out(last) is None


def test_other_kinds_and_what_is_no_warning_are_written_all_the_same() -> None:
    limit = LineLimit(Clock())
    assert sum(limit.passes(record_of("one")) for _ in range(100)) == log_limits.BURST_LINES
    assert limit.passes(record_of("another"))
    assert limit.passes(record_of("one", logging.ERROR))
    assert all(limit.passes(record_of("ended", logging.INFO)) for _ in range(1000))


def test_what_is_remembered_is_bounded() -> None:
    limit = LineLimit(Clock())
    for i in range(10 * log_limits.MAX_KINDS):
        assert limit.passes(record_of(f"{i} failed"))
    assert len(limit._counts) == log_limits.MAX_KINDS


def test_errors_of_the_event_loop_are_one_kind_whatever_they_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.StringIO()
    handler = LimitedHandler()
    handler.setStream(stream)
    handler.setFormatter(logs.formatter("router", "text"))
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    loop = asyncio.new_event_loop()
    try:
        for i in range(3000):
            error = OSError(24, "Too many open files")
            what = {"message": "socket.accept() out of system resource", "socket": object()}
            loop.call_exception_handler({**what, "exception": error, "number": i})
    finally:
        loop.close()
        logger.removeHandler(handler)
    assert stream.getvalue().count("out of system resource") < 2 * log_limits.BURST_LINES
    assert len(stream.getvalue()) < 20_000
