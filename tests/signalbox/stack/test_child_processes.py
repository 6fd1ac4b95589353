"""Processes of a local stack: what their parent learns of their end."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from signalbox.stack.child_processes import spawn


@pytest.fixture
def reaps_in_the_loop() -> Iterator[None]:
    """Makes asyncio take the status of an ended process in the loop, not on a thread."""
    if sys.version_info >= (3, 12):
        yield  # it always does
        return
    before = asyncio.get_child_watcher()
    asyncio.set_child_watcher(asyncio.PidfdChildWatcher())
    yield
    asyncio.set_child_watcher(before)


@pytest.mark.usefixtures("reaps_in_the_loop")
async def test_a_signal_does_not_take_the_status_of_a_process_that_has_ended() -> None:
    child = await spawn("worker", ["--no-such-flag"])
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 (so that the loop does not see it end)
    child.send(signal.SIGTERM)
    assert await child.process.wait() == 2
    assert child.ending == "exited with status 2"
