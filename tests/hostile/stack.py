"""A stack of processes that is attacked: router, scheduler, simulated workers, eight streams."""

import asyncio
import contextlib
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.services import Service, until_free, until_up
from tests.hostile import usage
from tests.hostile.case import VOCAB_SIZE, Answer, Attack, Options, target_at
from tests.hostile.streams import Report
from tests.ports import free_port
from tests.signalbox.stacks import environment
from tests.waiting import EVENT_S

HOST = "127.0.0.1"
MAX_FILES = 1024
MAX_ADDRESS_SPACE = 6 << 30
"""Of the router: an attack that nothing bounds ends the router and not the machine."""
WORKER_FLAGS = ("--simulate", "--simulated-step-ms=10", "--max-num-seqs=64")


_ALONE: dict[object, list[str]] = {}
"""What the streams say alone, by what the model is: to learn it takes as long as to start."""


@dataclass(slots=True)
class Beside:
    """The process that reads the streams."""

    process: "subprocess.Popen[str]"
    report: Report = field(default_factory=Report)

    def read(self) -> str:
        """Returns the next line that the process says."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the streams' process has ended; standard error says why"
        return line

    def send(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    @contextlib.contextmanager
    def streaming(self) -> Iterator[None]:
        """Within it all streams run; afterwards `report` has what they saw."""
        self.send("start")
        assert self.read() == "streaming"
        try:
            yield
        finally:
            self.send("stop")
            self.report = Report(**json.loads(self.read()))


@dataclass(slots=True)
class HostileStack:
    """The processes; `beside` runs streams against the router."""

    router: Service
    http_port: int
    scheduler: Service
    workers: list[Service]
    beside: Beside

    @property
    def pid(self) -> int:
        """Of the router."""
        return self.router.pid

    @property
    def address(self) -> str:
        return f"{HOST}:{self.router.port}"

    def attack(self, attack: Attack) -> list[Answer]:
        """Runs an attack from clients of this process; returns its answers."""

        async def run() -> list[Answer]:
            clients = target_at(
                host=HOST,
                grpc_port=self.router.port,
                http_port=self.http_port,
                scheduler_port=self.scheduler.port,
                router_pid=self.pid,
            )
            async with asyncio.timeout(EVENT_S), clients as target:
                answers = await attack(target)
            return [answers] if isinstance(answers, Answer) else list(answers)

        return asyncio.run(run())

    def revive(self) -> None:
        """Starts again whatever has ended, so that one case's failure is not another's."""
        for service in (self.scheduler, *self.workers, self.router):
            if service.process is None or service.process.poll() is not None:
                service.start()
        asyncio.run(until_up(self.address))

    def ended(self) -> list[str]:
        """Returns the last lines of the log of each service that has ended."""
        return [
            service.log.read_text(encoding="utf-8", errors="replace")[-2000:]
            for service in (self.router, self.scheduler, *self.workers)
            if service.process is None or service.process.poll() is not None
        ]

    def until_free(self) -> None:
        """Waits until no request is left, and every block of both pools can be had."""
        asyncio.run(until_free(f"{HOST}:{self.scheduler.port}"))

    def cpu_seconds(self) -> float:
        return usage.cpu_seconds(self.pid)


def _services(folder: Path, options: Options) -> tuple[Service, int, Service, list[Service]]:
    model = "signalbox_worker.runner.simulated.simulated_config.SimulatedConfig"
    constants = json.dumps({f"{model}.vocab_size": VOCAB_SIZE} | dict(options.constants))
    command = (sys.executable, "-m", "tests.hostile.launch", constants)

    def service(name: str, *arguments: str) -> Service:
        log = folder / f"{name}.log"
        return Service((name.partition("-")[0], *arguments), free_port(), log, command=command)

    scheduler = service("scheduler", *options.scheduler)
    to_scheduler = f"--scheduler={HOST}:{scheduler.port}"
    http_port = free_port()
    router = service("router", f"--http-port={http_port}", to_scheduler, *options.router)
    router.limits = {resource.RLIMIT_NOFILE: MAX_FILES, resource.RLIMIT_AS: MAX_ADDRESS_SPACE}
    workers = [
        service(f"worker-{number}", *WORKER_FLAGS, to_scheduler, *options.worker)
        for number in range(options.num_workers)
    ]
    return router, http_port, scheduler, workers


def _model(options: Options) -> object:
    """Returns all of the options that the model's output depends on."""
    of_model = [one for one in options.constants if one[0].startswith("signalbox_worker.")]
    return options.worker, tuple(of_model)


def _kill(service: Service) -> None:
    asyncio.run(service.kill())


@contextlib.contextmanager
def hostile_stack(folder: Path, options: Options) -> Iterator[HostileStack]:
    """Yields a stack that serves, and whose streams are known; kills it afterwards."""
    router, http_port, scheduler, workers = _services(folder, options)
    services = (scheduler, *workers, router)
    with contextlib.ExitStack() as stack:
        for service in services:
            service.start()
            stack.callback(_kill, service)
        asyncio.run(until_up(f"{HOST}:{router.port}"))
        known = json.dumps(_ALONE.get(_model(options), []))
        arguments = (f"{HOST}:{router.port}", f"http://{HOST}:{http_port}", known)
        streams = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.streams", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        stack.enter_context(streams)
        stack.callback(streams.kill)
        beside = Beside(streams)
        _ALONE[_model(options)] = json.loads(beside.read())
        yield HostileStack(router, http_port, scheduler, workers, beside)
