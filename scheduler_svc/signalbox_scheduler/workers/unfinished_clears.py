"""Clears of stores that outlive their workers: workers that join make those that may be missing.

On a server one worker clears for all, and what it leaves would be found by the worker in its place.
So workers that join make the clears that none has confirmed. Files on a disk may have no worker
while others clear. So a worker with a disk that joins is told of all clears, with marks by which
its files know those that they have made. Workers say which clears of earlier schedulers they know,
so that others catch up with them.
"""

import itertools
import secrets
from collections.abc import Iterable
from functools import partial

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_scheduler.planning.connector import OnCleared, nothing_waits
from signalbox_scheduler.transfers.peers import peer_identity
from signalbox_scheduler.workers.engine.scheduler import Scheduler

DISK = "disk"
"""Kind of the stores whose files keep the marks of clears."""
SHARED = "shared"
"""Kind of the stores that several workers have together."""
MAX_TENANTS = 64
"""Tenants whose clears are remembered; those of more are remembered as one of all tenants."""
MAX_EARLIER = 16
"""Earlier schedulers whose last clears are remembered."""


class UnfinishedClears:
    """Clears that a cluster was asked for, by tenant; None is all of them."""

    def __init__(self) -> None:
        self._issuer = secrets.token_bytes(16)
        self._numbers = itertools.count(1)
        self._of_disks: dict[str | None, int] = {}
        """Number of the last clear, ascending; a clear of all stands for those before."""
        self._earlier: dict[bytes, int] = {}
        """Number of the last clear of each scheduler before this one, as workers know it."""
        self._of_servers: dict[tuple[str, str | None], int] = {}
        """Number of the last clear that has not ended, by what the workers' blocks share."""

    def ask(self, tenant: str | None) -> int:
        """Returns the number of a new clear, and remembers it for disks whose workers join."""
        number = next(self._numbers)
        self._of_disks.pop(tenant, None)
        if tenant is None or len(self._of_disks) >= MAX_TENANTS:
            self._of_disks = {None: number}
        else:
            self._of_disks[tenant] = number
        return number

    def begin(
        self, scheduler: Scheduler, tenant: str | None, number: int, on_cleared: OnCleared
    ) -> None:
        """Clears a worker's caches and store; see `Scheduler.clear_prefix_cache`."""
        if _kind(scheduler) == SHARED:
            self._of_servers[_format(scheduler), tenant] = number
            on_cleared = partial(self._ended, _format(scheduler), tenant, number, on_cleared)
        scheduler.clear_prefix_cache(tenant, on_cleared, ClearMark(self._issuer, number))

    def join(self, scheduler: Scheduler, others: Iterable[Scheduler]) -> None:
        """Has a worker that joins make the clears that its store may lack, and `others` those of
        earlier schedulers of which this worker is the first to know."""
        clears: dict[str | None, int] = {}
        if _kind(scheduler) == DISK:
            self._learn(scheduler, others)
            for issuer, number in self._earlier.items():
                _catch_up(scheduler, ClearMark(issuer, number, catches_up=True))
            clears = self._of_disks
        elif _kind(scheduler) == SHARED:
            clears = {tenant: number for (_, tenant), number in self._of_servers.items()}
        for tenant, number in clears.items():
            self.begin(scheduler, tenant, number, nothing_waits)

    def _learn(self, scheduler: Scheduler, others: Iterable[Scheduler]) -> None:
        store = scheduler.config.store
        for issuer, number, _ in () if store is None else store.clears:
            if issuer != self._issuer and number > self._earlier.get(issuer, 0):
                self._earlier[issuer] = number
                for oldest in list(self._earlier)[:-MAX_EARLIER]:
                    del self._earlier[oldest]
                for other in others:
                    if _kind(other) == DISK:
                        _catch_up(other, ClearMark(issuer, number, catches_up=True))

    def _ended(
        self, of: str, tenant: str | None, number: int, on_cleared: OnCleared, fault: str
    ) -> None:
        for key, begun in list(self._of_servers.items()):
            is_done = key[0] == of and begun <= number and tenant in (None, key[1])
            if is_done and not fault:
                del self._of_servers[key]
        on_cleared(fault)


def _catch_up(scheduler: Scheduler, mark: ClearMark) -> None:
    scheduler.clear_prefix_cache(None, nothing_waits, mark)


def _kind(scheduler: Scheduler) -> str:
    store = scheduler.config.store
    return "" if store is None else store.kind


def _format(scheduler: Scheduler) -> str:
    """Returns what workers have in common whose blocks have the same names on a server."""
    return peer_identity(scheduler.config).kv_format
