"""A worker that serves requests and may be faulty, and one that audits its answers."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from signalbox_scheduler.audits import choice, pace
from signalbox_scheduler.audits.choice import SampledAudits
from signalbox_scheduler.audits.finding import AuditFinding, AuditLog
from signalbox_scheduler.audits.record import AuditRecord
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_worker.runner.runner import Runner
from tests.integration.audits.shapes import PROMPTS, Shape
from tests.integration.audits.silent_faults import Faulty, Plant
from tests.integration.stack import (
    Got,
    Router,
    RunningScheduler,
    RunningWorker,
    router,
    running_scheduler,
    running_worker,
    until_workers,
)
from tests.waiting import EVENT_S, eventually

STRIDE = 100
"""Handles of the requests that are asked at once."""
NUM_STORED = sum((len(prompt) - 1) // 16 for prompt in PROMPTS)


@dataclass(slots=True, kw_only=True)
class FaultyPair:
    """The workers, the first of which serves, and what its requests got without a fault."""

    shape: Shape
    scheduler: RunningScheduler
    client: Router
    worker: RunningWorker
    num_asked: int = 0
    is_asking: bool = False
    """True while no audit begins, so that none is dropped for the blocks of a request."""
    found: list[AuditFinding] = field(default_factory=list)
    """Findings that `findings` has not returned yet."""

    @property
    def serving(self) -> Scheduler:
        return self.scheduler.cluster.step_loops[0].scheduler

    @property
    def auditing(self) -> Scheduler:
        return self.scheduler.cluster.step_loops[1].scheduler

    def plant(self, plant: Plant, patch: pytest.MonkeyPatch) -> None:
        """Plants a fault, and has requests go where it shows."""
        plant(Faulty(self.worker, patch))
        if self.shape.is_read_from_a_peer:
            take_nothing_new(self.serving, patch)
            patch.delattr(self.auditing.state.selection, "next_group")

    async def findings(self) -> list[AuditFinding]:
        """Waits until all answers are audited; returns what differs in those since the last
        call."""
        log, self.is_asking = self.log, False
        for loop in self.scheduler.cluster.step_loops:
            loop.wake()
        counts = (log.num_different, log.num_dropped)
        await eventually(
            lambda: log.num_chosen == log.num_equal + sum(one.total() for one in counts)
        )
        assert not +log.num_dropped, log.num_dropped
        found, self.found = self.found, []
        return found

    @property
    def log(self) -> AuditLog:
        return self.scheduler.cluster.audits.log

    async def ask(
        self, predictions: list[list[int]] | None = None, *, drains: bool = False
    ) -> dict[int, Got]:
        """Asks all requests at once; returns their answers by handle.

        Args: drains: drain the worker once all have tokens.
        """
        self.is_asking = True
        first, self.num_asked = STRIDE * self.num_asked, self.num_asked + 1
        adapters = [one.sha256 for one in self.worker.worker.model.adapters]
        asked = range(first, first)
        for number, fields in enumerate(self.shape.requests(adapters)):
            if predictions is not None:
                fields["prediction"] = predictions[number]
            await self.client.add(first + number, fields.pop("prompt"), **fields)
            asked = range(first, first + number + 1)
        if drains:
            await eventually(lambda: all(self.client.got[one].tokens for one in asked))
            self.scheduler.cluster.drain(self.scheduler.cluster.step_loops[0])
        answers = await self.client.ended(*asked)
        for got in answers:
            got.assert_served()
        return dict(zip(asked, answers, strict=True))

    async def begin_anew(self) -> None:
        """Lets no block of earlier requests be found, as a fault may have made it; but in the
        store, if there is one, and by the other worker, if that is to serve."""
        store = self.worker.worker._runner.transfers.store
        while store.usage().num_blocks < min(NUM_STORED, self.shape.num_store_blocks):
            await self.ask()  # blocks are stored once they are used again, with the steps
        if not self.shape.is_read_from_a_peer:
            for loop in self.scheduler.cluster.step_loops:
                loop.scheduler.blocks.forget_prefixes()


def differing(answers: dict[int, Got], expected: dict[int, Got]) -> set[str]:
    """Returns ids of the requests whose tokens or log probabilities are not the expected ones."""
    return {
        f"r{handle}"
        for handle, got in answers.items()
        if (whole := expected[handle % STRIDE]).tokens != got.tokens
        or whole.logprobs != got.logprobs
    }


def predictions(answers: dict[int, Got]) -> list[list[int]]:
    """Returns the tokens of the first sequences, one of five wrong."""
    return [
        [token ^ 1 if i % 5 == 3 else token for i, token in enumerate(got.tokens[0])]
        for got in answers.values()
    ]


def take_nothing_new(scheduler: Scheduler, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler.state.selection, "next_group", lambda: None)


@contextlib.asynccontextmanager
async def faulty_pair(
    shape: Shape, load: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FaultyPair]:
    monkeypatch.setattr(choice, "CHANCE", 1.0)
    monkeypatch.setattr(choice, "MAX_RECORDS", STRIDE)
    monkeypatch.setattr(pace, "MAX_STEP_S", EVENT_S)  # a busy machine is slow
    config = SchedulerConfig(port=0, preemption_mode=PreemptionMode.SWAP, audit_cpu=1.0)
    async with (
        running_scheduler(config) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load) as worker,
    ):
        await until_workers(scheduler, 1)
        async with running_worker(scheduler.address, load):
            await until_workers(scheduler, 2)
            pair = FaultyPair(shape=shape, scheduler=scheduler, client=client, worker=worker)
            take_nothing_new(pair.auditing, monkeypatch)
            find = SampledAudits.find

            def find_later(self: SampledAudits, *asked: Any) -> AuditRecord | None:
                return None if pair.is_asking else find(self, *asked)

            monkeypatch.setattr(SampledAudits, "find", find_later)
            # Others would take the worker out of use.
            pair.log.listeners[:] = [lambda finding: pair.found.append(finding)]
            yield pair
