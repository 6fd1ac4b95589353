"""Waits of tests: for an event, with a bound that only a hang exceeds.

No test expects an event within a time that depends on the machine: one core that twenty processes
share takes minutes for what an idle machine does in a second.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

EVENT_S = float(os.environ.get("SIGNALBOX_TEST_EVENT_S", "600"))
"""Seconds after which an event that a test waits for will not come; fewer where it must not."""


async def run_ready_tasks() -> None:
    """Runs the tasks of this loop until each waits for time or I/O."""
    for _ in range(100):
        await asyncio.sleep(0)


async def with_longer_deadlines(call: Callable[[float], Awaitable[object]]) -> None:
    """Makes calls that end at their deadline, until one has arrived before it.

    Args:
        call: is given the deadline, in seconds, and returns whether the call had arrived; how long
            that takes depends on the machine.
    """
    deadline_s = 0.2
    while not await call(deadline_s):
        assert deadline_s < EVENT_S, "no call has arrived"
        deadline_s *= 2


def wait_until(condition: Callable[[], object], *, told: Callable[[], object] = str) -> None:
    """Returns once the condition holds, of other processes. Blocks; fails with what `told` says."""
    ends = time.monotonic() + EVENT_S
    while not condition():
        assert time.monotonic() < ends, told()
        time.sleep(0.02)


def wait_until_ended(pid: int) -> None:
    """Returns once a process has ended, waited for by its parent or not."""
    import psutil

    def has_ended() -> bool:
        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return True

    wait_until(has_ended, told=lambda: f"process {pid} still runs")


async def eventually(condition: Callable[[], object]) -> None:
    """Returns once the condition holds, of something that sets no event. Raises TimeoutError."""
    async with asyncio.timeout(EVENT_S):
        while not condition():  # noqa: ASYNC110 (see above)
            await asyncio.sleep(0.005)
