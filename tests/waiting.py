"""Waits of tests: for an event, with a bound that only a hang exceeds.

No test expects an event within a time that depends on the machine: one core that twenty processes
share takes minutes for what an idle machine does in a second.
"""

import asyncio
from collections.abc import Callable

EVENT_S = 120.0
"""Seconds after which an event that a test waits for will not come."""


async def eventually(condition: Callable[[], object]) -> None:
    """Returns once the condition holds, of something that sets no event. Raises TimeoutError."""
    async with asyncio.timeout(EVENT_S):
        while not condition():  # noqa: ASYNC110 (see above)
            await asyncio.sleep(0.005)
