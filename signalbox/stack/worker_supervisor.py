"""Keeps as many workers running as are wanted, whatever starts them.

Each worker has a place; its name, ports and devices go by the number of the place. If a worker is
lost, its place gets another one after a pause, which grows with repeated losses.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

logger = logging.getLogger(__name__)

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
FORGET_S = 600.0
"""Seconds after which a loss no longer lengthens a pause."""


class ServiceDied(RuntimeError):
    """A process of the stack ended on its own."""


class LaunchedWorker(Protocol):
    """What a launcher has started: the process of a local worker, the driver of one on Ray."""

    @property
    def name(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def ending(self) -> str:
        """Words for how it has ended."""

    async def wait(self) -> int:
        """Returns the exit status, or the negative number of a signal, once it has ended."""

    async def end(self, *, within_s: float) -> None:
        """Drains it and waits for its end; kills it if that takes longer."""

    def send(self, number: signal.Signals) -> None: ...


Launch = Callable[[int], Awaitable[LaunchedWorker]]
"""Starts the worker of a place."""


class _Place:
    """One of the workers that are wanted."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.worker: LaunchedWorker | None = None
        self.lost_at: list[float] = []
        self.keeper: asyncio.Task[None] | None = None
        self.is_leaving = False

    def pause_s(self, now: float) -> float:
        """Counts a loss; returns the seconds until the next start."""
        self.lost_at = [at for at in self.lost_at if now - at < FORGET_S] + [now]
        return min(MAX_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (len(self.lost_at) - 1))


class WorkerSupervisor:
    """The workers of one `signalbox serve`."""

    def __init__(
        self,
        launch: Launch,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._launch = launch
        self._clock = clock
        self._sleep = sleep
        self._places: dict[int, _Place] = {}
        self._has_served = asyncio.Event()
        self._failed: asyncio.Future[None] | None = None

    @property
    def workers(self) -> list[LaunchedWorker]:
        """Those that run, by place."""
        return [place.worker for _, place in sorted(self._places.items()) if place.worker]

    @property
    def wanted(self) -> int:
        """Number of workers that are to run."""
        return sum(not place.is_leaving for place in self._places.values())

    def adopt(self, place: int, worker: LaunchedWorker) -> None:
        """Keeps a worker that has been started before the event loop."""
        self._add(place).worker = worker

    def serves(self) -> None:
        """Says that a worker serves. From now on lost ones are started again; the loss of all
        before is a fault that another start would repeat."""
        self._has_served.set()

    def grow(self, wanted: int) -> None:
        """Adds workers, in the places with the lowest numbers that are free."""
        number = 0
        while self.wanted < wanted:
            if number not in self._places:  # one that leaves keeps its ports until it has ended
                self._add(number)
            number += 1

    async def remove(self, name: str, *, within_s: float) -> None:
        """Drains the worker of that name and ends it, for good."""
        place = next(one for one in self._places.values() if name_of(one.number) == name)
        await self._remove(place, within_s=within_s)

    async def wait(self) -> None:
        """Never returns; raises ServiceDied if all workers are lost before one has served."""
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._failed)

    async def stop(self, *, within_s: float) -> None:
        """Drains and ends all workers."""
        places = list(self._places.values())
        await asyncio.gather(*(self._remove(one, within_s=within_s) for one in places))

    def kill(self) -> None:
        """Ends all workers at once."""
        for place in self._places.values():
            if place.keeper:
                place.keeper.cancel()
            if place.worker:
                place.worker.send(signal.SIGKILL)

    def _add(self, number: int) -> _Place:
        place = self._places[number] = _Place(number)
        place.keeper = asyncio.create_task(self._keep(place))
        return place

    async def _remove(self, place: _Place, *, within_s: float) -> None:
        place.is_leaving = True
        if place.keeper:
            place.keeper.cancel()
            await asyncio.gather(place.keeper, return_exceptions=True)
        if place.worker:
            await place.worker.end(within_s=within_s)
        self._places.pop(place.number, None)

    async def _keep(self, place: _Place) -> None:
        while True:
            try:
                if place.worker is None:
                    await self._start(place)
                    assert place.worker is not None
                status = await place.worker.wait()
                reason = f"{place.worker.name} {place.worker.ending}"
            except OSError as error:
                status, reason = 1, f"{name_of(place.number)} cannot be started: {error}"
            place.worker = None
            pause_s = place.pause_s(self._clock())
            if not self._may_go_on(reason, status):
                return
            logger.warning(
                "%s; workers left: %d; it is started again after %g s",
                *(reason, len(self.workers), pause_s),
            )
            await self._has_served.wait()
            await self._sleep(pause_s)

    async def _start(self, place: _Place) -> None:
        """Starts the worker of a place; it is known even if this task is cancelled meanwhile."""
        starting = asyncio.ensure_future(self._launch(place.number))
        try:
            place.worker = await asyncio.shield(starting)
        except asyncio.CancelledError:
            place.worker = await starting
            raise

    def _may_go_on(self, reason: str, status: int) -> bool:
        if self._has_served.is_set() or self.workers:
            return True
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        if not self._failed.done():
            told = "; its last lines say why" if status >= 0 else ""
            self._failed.set_exception(ServiceDied(reason + told))
        return False


def name_of(place: int) -> str:
    """Returns the name of the worker in a place."""
    return f"worker {place}"
