"""The faults that are done to a stack, each undone again and on record.

Named after Jepsen's. Every fault ends with the stack whole, so that the next one meets it so.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable

from tests.chaos.checks.history import Fault, FaultKind
from tests.chaos.load import Load
from tests.chaos.services import ChaosStack, ChaosWorker

STOP_S = 4.0
"""Longer than a lease, so that a service that is stopped for so long is missed."""
SHORT_S = 1.0
"""Shorter than a lease."""


class Nemesis:
    """Does one thing after the other to a stack under load."""

    def __init__(self, stack: ChaosStack, load: Load, *, seed: int) -> None:
        self.faults: list[Fault] = []
        self._stack = stack
        self._load = load
        self._rng = random.Random(seed)
        of_workers: dict[str, Callable[[], Awaitable[None]]] = {
            "worker killed": self._kill_worker,
            "worker stopped": self._stop_worker,
            "worker drained": self._drain_worker,
            "steps frozen": self._freeze_steps,
            "steps reset": self._reset_steps,
            "registrations reset": self._reset_registrations,
        }
        of_schedulers: dict[str, Callable[[], Awaitable[None]]] = {
            "scheduler killed": self._kill_scheduler,
            "scheduler stopped": self._stop_scheduler,
            "requests frozen": self._freeze_requests,
            "requests reset": self._reset_requests,
            "requests delayed": self._delay_requests,
        }
        of_routers: dict[str, Callable[[], Awaitable[None]]] = {
            "router killed": self._kill_router,
            "router stopped": self._stop_router,
        }
        self._kinds = {
            **{name: (FaultKind.WORKER, do) for name, do in of_workers.items()},
            **{name: (FaultKind.SCHEDULER, do) for name, do in of_schedulers.items()},
            **{name: (FaultKind.ROUTER, do) for name, do in of_routers.items()},
        }

    @property
    def names(self) -> list[str]:
        return list(self._kinds)

    def names_of(self, kind: FaultKind) -> list[str]:
        return [name for name, (own, _) in self._kinds.items() if own is kind]

    async def do(self, name: str) -> Fault:
        """Does it, undoes it, waits until the stack is whole and has served a new request."""
        kind, fault = self._kinds[name]
        began = time.monotonic()
        serves = asyncio.create_task(self._load.until_ok(since=began))
        await fault()
        await self._stack.until_whole()
        recovered_s = await serves - began
        done = Fault(
            kind=kind, name=name, began=began, ended=time.monotonic(), recovered_s=recovered_s
        )
        self.faults.append(done)
        return done

    def _worker(self) -> ChaosWorker:
        return self._rng.choice(self._stack.workers[1:])  # the first one stays, as a witness

    async def _kill_worker(self) -> None:
        service = self._worker().service
        await service.kill()
        service.start()

    async def _stop_worker(self) -> None:
        service = self._worker().service
        service.send(signal.SIGSTOP)
        await asyncio.sleep(STOP_S)
        service.send(signal.SIGCONT)

    async def _drain_worker(self) -> None:
        service = self._worker().service
        service.send(signal.SIGTERM)
        if status := await service.wait():
            self._stack.seen.append(f"a drained worker exited with {status}")
        service.start()

    async def _freeze_steps(self) -> None:
        proxy = self._worker().steps
        proxy.freeze()
        await asyncio.sleep(STOP_S)
        proxy.cut()
        proxy.thaw()

    async def _reset_steps(self) -> None:
        self._worker().steps.cut()

    async def _reset_registrations(self) -> None:
        self._stack.registrations.cut()

    async def _kill_scheduler(self) -> None:
        await self._stack.scheduler.kill()
        self._stack.scheduler.start()

    async def _stop_scheduler(self) -> None:
        self._stack.scheduler.send(signal.SIGSTOP)
        await asyncio.sleep(SHORT_S)
        self._stack.scheduler.send(signal.SIGCONT)

    async def _freeze_requests(self) -> None:
        self._stack.requests.freeze()
        await asyncio.sleep(STOP_S)
        self._stack.requests.cut()
        self._stack.requests.thaw()

    async def _reset_requests(self) -> None:
        self._stack.requests.cut()

    async def _delay_requests(self) -> None:
        self._stack.requests.delay_s = 0.05
        await asyncio.sleep(SHORT_S)
        self._stack.requests.delay_s = 0.0

    async def _kill_router(self) -> None:
        await self._stack.router.kill()
        self._stack.router.start()

    async def _stop_router(self) -> None:
        self._stack.router.send(signal.SIGSTOP)
        await asyncio.sleep(SHORT_S)
        self._stack.router.send(signal.SIGCONT)
