"""Clears of stores on a server that no worker has confirmed: workers that join make them, too.

A worker repeats a clear that failed, and finds nothing before, but forgets it when it ends. What is
left on the server would be found by the worker in its place.
"""

import itertools
from functools import partial

from scheduler_svc.kv_moves.store_planning import OnCleared
from scheduler_svc.scheduler import Scheduler

SHARED = "shared"
"""Kind of the stores that several workers have together."""


class UnfinishedClears:
    """Clears of a cluster that have not ended, by what the workers' blocks share and by tenant."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._begun: dict[tuple[str, str | None], int] = {}
        """Number of the last clear."""

    def begin(self, scheduler: Scheduler, tenant: str | None, on_cleared: OnCleared) -> None:
        """Clears a worker's caches and store; see `Scheduler.clear_prefix_cache`."""
        if scheduler.store is not None and scheduler.store.kind == SHARED:
            number = self._begun[_format(scheduler), tenant] = next(self._numbers)
            on_cleared = partial(self._ended, _format(scheduler), tenant, number, on_cleared)
        scheduler.clear_prefix_cache(tenant, on_cleared)

    def join(self, scheduler: Scheduler) -> None:
        """Has a worker that joins make the clears that none has confirmed."""
        if scheduler.store is not None and scheduler.store.kind == SHARED:
            for tenant in {tenant: None for _, tenant in self._begun}:
                self.begin(scheduler, tenant, lambda _fault: None)

    def _ended(
        self, of: str, tenant: str | None, number: int, on_cleared: OnCleared, fault: str
    ) -> None:
        for key, begun in list(self._begun.items()):
            is_done = key[0] == of and begun <= number and tenant in (None, key[1])
            if is_done and not fault:
                del self._begun[key]
        on_cleared(fault)


def _format(scheduler: Scheduler) -> str:
    """Returns what workers have in common whose blocks have the same names on a server."""
    return "" if scheduler.lending is None else scheduler.lending.identity.kv_format
