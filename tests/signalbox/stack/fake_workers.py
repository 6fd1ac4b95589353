"""Workers that are no processes, and a launcher of them on a clock of its own."""

import asyncio
import signal
from dataclasses import dataclass, field

from signalbox.stack.processes.worker_supervisor import WorkerSupervisor, name_of
from tests.waiting import run_ready_tasks


@dataclass(eq=False)
class FakeWorker:
    """A worker that ends when it is told to, or when the test says so."""

    name: str
    pid: int
    told: list[str] = field(default_factory=list)
    ended: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def ending(self) -> str:
        return f"exited with status {self.ended.result()}"

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def end(self, *, within_s: float) -> None:
        self.told.append(f"end within {within_s:g} s")
        self.lose(0)

    def send(self, number: signal.Signals) -> None:
        self.told.append(number.name)
        self.lose(-number)

    def lose(self, status: int = 1) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


class FakeLauncher:
    """Launches workers in no time, and keeps the time of the supervisor."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []
        self.workers: list[FakeWorker] = []
        self.faults: list[OSError] = []
        self.launches = asyncio.Event()
        """Cleared by a test in which a worker that has been started is not returned yet."""
        self.launches.set()
        self.supervisor = WorkerSupervisor(self.launch, clock=lambda: self.now, sleep=self.sleep)

    async def launch(self, place: int) -> FakeWorker:
        if self.faults:
            raise self.faults.pop()
        worker = FakeWorker(name_of(place), len(self.workers))
        self.workers.append(worker)
        await self.launches.wait()
        return worker

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    @property
    def running(self) -> list[str]:
        return [worker.name for worker in self.supervisor.workers]

    async def started(self, num_workers: int, *, serves: bool = True) -> None:
        for place in range(num_workers):
            self.supervisor.adopt(place, await self.launch(place))
        if serves:
            self.supervisor.serves()
        await run_ready_tasks()

    async def stop(self) -> None:
        """Ends in the invariant: all that was launched has ended, and nothing starts again."""
        await self.supervisor.stop(within_s=3)
        await run_ready_tasks()
        assert all(worker.ended.done() for worker in self.workers)
        assert not self.supervisor.workers
        assert not self.supervisor.pending
