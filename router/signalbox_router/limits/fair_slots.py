"""Shares a few slots for costly work fairly between payers.

The next slot goes to the waiting payer that holds the fewest slots and, among equals, has used the
least time. A single payer never holds all slots: one is left for the next payer, which therefore
never waits for the work of one other payer alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from signalbox_router.limits.payers import Payer


@dataclass(slots=True)
class _Share:
    """Slots that one payer holds and waits for, and the time that it has used."""

    used_s: float
    """Seconds in which it held slots, summed over slots."""
    num_held: int = 0
    waiting: deque[tuple[asyncio.Future[None], int]] = field(default_factory=deque)
    """Callers that wait, and how many slots each needs."""


class FairSlots:
    """Slots that payers hold for a while."""

    def __init__(self, num_slots: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if num_slots < 2:
            raise ValueError(f"{num_slots} slots cannot be shared; use at least 2")
        self._num_free = num_slots
        self._most_held = num_slots - 1
        self._clock = clock
        self._shares: dict[Payer, _Share] = {}  # of payers that hold a slot or wait for one

    @property
    def num_waiting(self) -> int:
        return sum(len(share.waiting) for share in self._shares.values())

    @asynccontextmanager
    async def slot(self, payer: Payer, *, weight: int = 1) -> AsyncIterator[None]:
        """Waits for a slot, or for `weight` slots, and holds them while the block runs.

        The first payer in line stays first until there are slots enough for it.
        """
        if weight > self._most_held:
            raise ValueError(f"{weight} slots at once are more than a payer may hold")
        share = self._share_of(payer)
        await self._acquire(payer, share, weight)
        began = self._clock()
        try:
            yield
        finally:
            share.used_s += weight * (self._clock() - began)
            self._release(payer, share, weight)

    def _share_of(self, payer: Payer) -> _Share:
        """Returns a payer's share; a new one begins with the least time used of those present."""
        if payer not in self._shares:
            used = min((share.used_s for share in self._shares.values()), default=0.0)
            self._shares[payer] = _Share(used)
        return self._shares[payer]

    async def _acquire(self, payer: Payer, share: _Share, weight: int) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        share.waiting.append((turn, weight))
        self._hand_out()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._hand_out()  # others may fit where this caller did not
                self._forget_idle(payer, share)
            else:  # the slot was granted at the same moment
                self._release(payer, share, weight)
            raise

    def _release(self, payer: Payer, share: _Share, weight: int) -> None:
        share.num_held -= weight
        self._num_free += weight
        self._hand_out()
        self._forget_idle(payer, share)

    def _hand_out(self) -> None:
        while (share := self._next()) is not None:
            turn, weight = share.waiting[0]
            if weight > self._num_free:
                return
            share.waiting.popleft()
            share.num_held += weight
            self._num_free -= weight
            turn.set_result(None)

    def _next(self) -> _Share | None:
        for share in self._shares.values():
            _drop_cancelled(share)
        ready = (
            share
            for share in self._shares.values()
            if share.waiting and share.num_held + share.waiting[0][1] <= self._most_held
        )
        return min(ready, key=lambda share: (share.num_held, share.used_s), default=None)

    def _forget_idle(self, payer: Payer, share: _Share) -> None:
        _drop_cancelled(share)
        if not share.num_held and not share.waiting:
            self._shares.pop(payer, None)


def _drop_cancelled(share: _Share) -> None:
    while share.waiting and share.waiting[0][0].cancelled():
        share.waiting.popleft()
