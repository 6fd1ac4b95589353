"""Keeps a number of workers running, whatever starts them.

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

    def __init__(self, message: str, *, was_killed: bool = False) -> None:
        """Args: was_killed: says that a signal has ended it, so that another start may succeed."""
        self.was_killed = was_killed
        super().__init__(message)


class LaunchedWorker(Protocol):
    """Process that a launcher has started: a local worker, or the driver of one on Ray."""

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
    """One of the workers that are kept."""

    def __init__(self, number: int, worker: LaunchedWorker) -> None:
        self.number = number
        self.worker: LaunchedWorker | None = worker
        self.lost_at: list[float] = []
        self.keeper: asyncio.Task[None] | None = None

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
        self._is_killed = False
        self._failed: asyncio.Future[None] | None = None
        self.pending: dict[str, str] = {}
        """Reason why a worker does not run yet or again, by name of the worker."""
        self.changed = asyncio.Event()
        """Set when `pending` has changed."""

    @property
    def workers(self) -> list[LaunchedWorker]:
        """Workers that run, by place."""
        return [place.worker for place in self._in_order() if place.worker]

    def adopt(self, number: int, worker: LaunchedWorker) -> None:
        """Keeps a worker that has been started for a place."""
        place = self._places[number] = _Place(number, worker)
        place.keeper = asyncio.create_task(self._keep(place))

    def serves(self) -> None:
        """Says that a worker serves. From now on lost ones are started again; the loss of all
        before is a fault that another start would repeat."""
        self._has_served.set()

    def waits(self, name: str, reason: str) -> None:
        """Says what a worker waits for; an empty text if it goes on."""
        if reason:
            self.pending[name] = reason
        else:
            self.pending.pop(name, None)
        self.changed.set()

    async def wait(self) -> None:
        """Never returns; raises ServiceDied if all workers are lost before one has served."""
        await asyncio.shield(self._failure())

    async def stop(self, *, within_s: float) -> None:
        """Drains and ends all workers."""
        await asyncio.gather(*(self._end(one, within_s=within_s) for one in self._in_order()))

    def kill(self) -> None:
        """Ends all workers at once."""
        self._is_killed = True
        for place in self._places.values():
            if place.keeper:
                place.keeper.cancel()
            if place.worker:
                place.worker.send(signal.SIGKILL)

    async def gone(self) -> None:
        """Returns when all workers have ended, which have been killed."""
        keepers = [place.keeper for place in self._in_order() if place.keeper]
        await asyncio.gather(*keepers, return_exceptions=True)
        await asyncio.gather(*(one.wait() for one in self.workers))

    def _in_order(self) -> list[_Place]:
        return [place for _, place in sorted(self._places.items())]

    async def _end(self, place: _Place, *, within_s: float) -> None:
        if place.keeper:
            place.keeper.cancel()
            await asyncio.gather(place.keeper, return_exceptions=True)
        if place.worker:
            await place.worker.end(within_s=within_s)
        self._places.pop(place.number, None)
        self.waits(name_of(place.number), "")

    async def _keep(self, place: _Place) -> None:
        name = name_of(place.number)
        while True:
            try:
                if place.worker is None:
                    self.waits(name, "")
                    await self._start(place)
                assert place.worker is not None
                status = await place.worker.wait()
                # A worker ends with status 0 when it has drained, as an operator asked it to.
                reason = f"{name} {place.worker.ending if status else 'has drained and left'}"
            except OSError as error:
                status, reason = 1, f"{name} cannot be started: {error}"
            place.worker = None
            pause_s = place.pause_s(self._clock())
            if not self._may_restart(reason, status):
                return
            again = f"it is started again after {pause_s:g} s"
            level = logging.WARNING if status else logging.INFO
            logger.log(level, "%s; workers left: %d; %s", reason, len(self.workers), again)
            self.waits(name, f"{reason}; {again}")
            await self._has_served.wait()
            await self._sleep(pause_s)

    async def _start(self, place: _Place) -> None:
        """Starts the worker of a place; it is known even if this task is cancelled meanwhile."""
        starting = asyncio.ensure_future(self._launch(place.number))
        try:
            place.worker = await asyncio.shield(starting)
        except asyncio.CancelledError:
            place.worker = await starting
            if self._is_killed:
                place.worker.send(signal.SIGKILL)
            raise

    def _may_restart(self, reason: str, status: int) -> bool:
        if self._has_served.is_set() or self.workers:
            return True
        if not (failure := self._failure()).done():
            told = "; its last lines say why" if status >= 0 else ""
            failure.set_exception(ServiceDied(reason + told, was_killed=status < 0))
        return False

    def _failure(self) -> asyncio.Future[None]:
        if self._failed is None:
            self._failed = asyncio.get_running_loop().create_future()
        return self._failed


def name_of(place: int) -> str:
    return f"worker {place}"
