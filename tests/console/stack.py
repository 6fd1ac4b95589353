"""Services in this process whose model says what a test wants, for a browser to call."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
from anyio.from_thread import BlockingPortal

from signalbox_contract.model import Adapter
from signalbox_router.main import Router
from signalbox_scheduler.config import SchedulerConfig
from tests.agents.families import CHATML
from tests.agents.scripted_executor import ScriptedExecutor, make_scripted_runner
from tests.integration.stack import (
    RunningScheduler,
    RunningWorker,
    assert_idle,
    running_router,
    running_scheduler,
    running_worker,
    until_workers,
)
from tests.waiting import EVENT_S, wait_until

MODEL = "scripted"
ADAPTER = "heron"
STEP_NS = 2_000_000
"""Time of a token, so that a long answer is still being written when a test looks."""
WINDOW = 16_384
NUM_BLOCKS = 4 * WINDOW // 16
_TURN = re.compile(r"<\|im_start\|>user\n(.*?)<\|im_end\|>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


@dataclass(slots=True)
class ScriptedModel:
    """Answers the last turn of a prompt as a test says, any other with the turn itself."""

    answers: dict[str, str] = field(default_factory=dict)
    """By the text of a turn. Each prompt is asked for once: a test's questions are its own."""
    prompts: list[str] = field(default_factory=list)

    def __call__(self, prompt: str) -> str:
        self.prompts.append(prompt)
        turn = _TURN.findall(prompt)[-1]
        if found := _RESULT.search(turn):
            return f"The tool says: {found[1]}"
        return self.answers.get(turn.strip(), f"You said: {turn.strip()}")

    def prompt_of(self, question: str) -> str:
        """Returns the newest prompt whose last turn is the question."""
        return next(
            one for one in reversed(self.prompts) if _TURN.findall(one)[-1].strip() == question
        )


@dataclass(slots=True)
class Services:
    """A scheduler and its workers; routers come and go."""

    portal: BlockingPortal
    scheduler: RunningScheduler
    model: ScriptedModel
    executors: list[ScriptedExecutor] = field(default_factory=list)

    @contextmanager
    def worker(self, **settings: Any) -> Iterator[RunningWorker]:
        """Adds a worker that has joined. Settings are those of `SimulatedConfig`."""
        given = {
            "name": MODEL,
            "max_model_len": WINDOW,
            "num_gpu_blocks": NUM_BLOCKS,
            "step_ns": STEP_NS,
            "adapters": (Adapter(name=ADAPTER, sha256="a1" * 32),),
        }
        runner = make_scripted_runner(CHATML, self.model, **{**given, **settings})
        self.executors.append(runner.executor)
        address = self.scheduler.address
        joined = len(self.scheduler.cluster.step_loops) + 1
        running = running_worker(address, lambda: runner)
        with self.portal.wrap_async_context_manager(running) as worker:
            self.portal.call(until_workers, self.scheduler, joined)
            yield worker
        self.portal.call(until_workers, self.scheduler, joined - 1)

    @contextmanager
    def router(self, **settings: Any) -> Iterator[Router]:
        """Runs a router. Settings are those of `RouterConfig`."""
        running = running_router(self.scheduler.address, **{"http_port": 0, **settings})
        with self.portal.wrap_async_context_manager(running) as router:
            yield router

    @contextmanager
    def load(self, router: Router, *, num_requests: int = 1) -> Iterator[None]:
        """Has others ask for long answers, which have begun; aborts them in the end."""
        questions = [f"Talk to no one {i}" for i in range(num_requests)]
        self.model.answers |= dict.fromkeys(questions, "on and on, " * 1_000)
        tasks = [self.portal.start_task_soon(_read, url_of(router), one) for one in questions]
        try:
            wait_until(lambda: self.num_live() >= num_requests)
            yield
        finally:
            for task in tasks:
                task.cancel()
        wait_until(lambda: not self.num_live())

    def num_live(self) -> int:
        """Returns how many requests have not ended."""
        return len(self.scheduler.cluster.requests)

    def num_drawn(self) -> int:
        """Returns how many tokens the workers have drawn."""
        return sum(executor.num_drawn for executor in self.executors)

    def check_idle(self) -> None:
        """Returns once no request is left and every block is free."""
        self.portal.call(assert_idle, self.scheduler)


@contextmanager
def serving(portal: BlockingPortal) -> Iterator[Services]:
    """Runs a scheduler with a worker; in the end no request, block or task is left."""
    running = running_scheduler(SchedulerConfig(port=0))
    with portal.wrap_async_context_manager(running) as scheduler:
        services = Services(portal, scheduler, ScriptedModel())
        with services.worker():
            yield services
            services.check_idle()


async def _read(url: str, question: str) -> None:
    body = {"messages": [{"role": "user", "content": question}], "stream": True}
    async with (
        httpx2.AsyncClient(base_url=url, timeout=EVENT_S) as client,
        client.stream("POST", "v1/chat/completions", json=body) as answer,
    ):
        async for _ in answer.aiter_lines():
            pass


def url_of(router: Router) -> str:
    """Returns the address of the HTTP port, which is the console's."""
    assert router.http is not None
    return f"http://127.0.0.1:{router.http.port}/"


def num_watchers(router: Router) -> int:
    """Returns how many streams of `Watch` a router has."""
    return len(router._operations._watchers)
