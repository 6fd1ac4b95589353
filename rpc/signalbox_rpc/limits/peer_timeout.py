"""Times how long a peer is silent, by a clock that stops while this process does not run.

After a pause (no CPU for seconds, or a blocked event loop) a process finds its timers expired
before it has read what the peer sent in time. Phi accrual detectors adapt to such pauses
(Hayashibara et al., SRDS 2004). Looking several times is enough here: a pause of any length costs
one look, and arrived messages are read before the next.
"""

import asyncio
from typing import Any

NUM_LOOKS = 5


async def wait_for_first(*futures: "asyncio.Future[Any]", within_s: float) -> bool:
    """Waits until one of `futures` is done; returns False after `within_s` of silence."""
    for _ in range(NUM_LOOKS):
        done, _ = await asyncio.wait(
            futures, timeout=within_s / NUM_LOOKS, return_when=asyncio.FIRST_COMPLETED
        )
        if done:
            return True
    return False
