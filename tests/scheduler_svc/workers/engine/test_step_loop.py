"""The step loop of one worker without I/O: the fake worker executes what `fill` returns."""

import math
from collections import deque
from dataclasses import dataclass, field

import pytest

from signalbox_contract.model import StoreCapacity
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.transfers.pending_transfers import MAX_CANCEL_S
from signalbox_scheduler.transfers.transfer_connector import LOADING_POLL_S
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.engine.step_loop import (
    FIRST_GUESS_S_PER_TOKEN,
    TIMEOUT_PER_PREDICTION,
    StepLoop,
)
from tests.scheduler_svc.fake_store import FakeStore
from tests.scheduler_svc.fake_worker import EncodedPlan, FakeWorker, expected
from tests.scheduler_svc.make import make_request, make_scheduler, outputs

MB = 1 << 20


@dataclass(slots=True)
class Driver:
    """Starts steps, and completes them when it is told to."""

    scheduler: Scheduler
    step_timeout_s: float = math.inf
    now: float = 0.0
    started: deque[EncodedPlan] = field(default_factory=deque)
    ended: list[SequenceGroup] = field(default_factory=list)
    preparations: list[Preparation] = field(default_factory=list)
    num_wakes: int = 0
    loop: StepLoop = field(init=False)
    worker: FakeWorker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = FakeWorker(self.scheduler.blocks.block_size)
        self.loop = StepLoop(
            self.scheduler,
            send_updates=self._send_updates,
            prepare=self.preparations.append,
            wake=self._wake,
            wake_all=self._wake,
            step_timeout_s=self.step_timeout_s,
        )

    def _send_updates(self, outcome: StepOutcome) -> None:
        self.ended += outcome.ended

    def _wake(self) -> None:
        self.num_wakes += 1

    def fill(self) -> int:
        """Starts all steps that are planned now; returns how many."""
        num_started = 0
        while (plan := self.loop.fill(self.now)) is not None:
            self.started.append(EncodedPlan(plan))
            num_started += 1
        return num_started

    def complete(self) -> None:
        self.loop.complete(self.worker.execute(self.started.popleft()), self.now)

    def run(self) -> None:
        while self.fill() or self.started:
            self.complete()
            self.scheduler.check()


@pytest.mark.parametrize("depth", [1, 2])
def test_as_many_steps_as_allowed_are_in_flight_and_complete_in_order(depth: int) -> None:
    driver = Driver(make_scheduler(max_in_flight=depth))
    groups = [make_request([7 + i], max_tokens=12, arrival=float(i)) for i in range(3)]
    for group in groups:
        driver.scheduler.admission.add(group)
    assert driver.fill() == depth
    assert driver.fill() == 0, "no step is complete"
    driver.complete()
    assert driver.fill() == 1
    driver.run()
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=12)]
    assert driver.ended == groups
    assert not driver.scheduler.has_unfinished


def test_a_step_is_overdue_by_its_size_and_by_how_long_tokens_have_taken() -> None:
    driver = Driver(make_scheduler(max_in_flight=1), step_timeout_s=4.0)
    assert driver.loop.seconds_left(0.0) == math.inf
    driver.scheduler.admission.add(make_request([1] * 10, max_tokens=8))
    driver.fill()
    limit_s = TIMEOUT_PER_PREDICTION * FIRST_GUESS_S_PER_TOKEN * 10
    assert driver.loop.seconds_left(0.0) == pytest.approx(limit_s)
    driver.now = 1.0
    assert driver.loop.seconds_left(driver.now) == pytest.approx(limit_s - 1)
    driver.complete()  # ten tokens took a second: 0.1 s each
    driver.fill()
    assert driver.loop.oldest_limit_s == 4.0, "one token may take 1 s, and any step takes 4"
    driver.now += 3.0
    assert driver.loop.seconds_left(driver.now) == pytest.approx(1.0)
    driver.complete()  # one token took 3 s
    driver.fill()
    assert driver.loop.oldest_limit_s == pytest.approx(TIMEOUT_PER_PREDICTION * 3.0)
    driver.complete()  # at once
    driver.fill()
    assert driver.loop.oldest_limit_s == pytest.approx(TIMEOUT_PER_PREDICTION * 3.0 * 0.99)
    driver.run()
    assert driver.loop.seconds_left(driver.now) == math.inf


def test_the_time_of_a_step_begins_when_it_becomes_the_oldest() -> None:
    driver = Driver(make_scheduler(), step_timeout_s=1.0)
    driver.scheduler.admission.add(make_request([7], max_tokens=25))
    for _ in range(20):  # longer than one step may take, all in all
        driver.fill()
        driver.now += 0.4
        assert driver.loop.seconds_left(driver.now) >= 1.0 - 0.4 - 1e-9
        driver.complete()
    driver.run()
    assert len(driver.ended) == 1


def test_a_request_that_returns_to_the_queue_wakes_all_drivers() -> None:
    driver = Driver(make_scheduler(num_gpu_blocks=6))
    for i in range(2):
        driver.scheduler.admission.add(make_request([i + 1] * 8, max_tokens=12, arrival=float(i)))
    driver.run()
    assert driver.num_wakes == driver.scheduler.preemption.num_recomputes > 0
    assert len(driver.ended) == 2


@pytest.mark.parametrize("fault", ["", "no such rule"])
def test_a_request_waits_for_its_structured_output_and_fails_with_it(fault: str) -> None:
    driver = Driver(make_scheduler(grammar_bytes=64 * MB))
    group = make_request([7], structured_output=("regex", "a+"))
    driver.scheduler.admission.add(group)
    assert driver.fill() == 0
    (preparation,) = driver.preparations
    driver.loop.prepared(preparation.constraint, fault=fault, now=1.0)
    assert driver.num_wakes == 2, "this driver, and all others"
    driver.run()
    assert driver.ended == [group]
    assert (group.failure is None) == (not fault)
    assert driver.preparations == [preparation]


def make_loading_driver() -> Driver:
    """Returns a worker that looks a prefix up, which does not end by itself."""
    scheduler = make_scheduler(num_cpu_blocks=16, store=StoreCapacity(kind="memory"))
    driver = Driver(scheduler)
    driver.worker.store = FakeStore({}, driver.worker.cpu, ends_at_once=False)
    scheduler.admission.add(make_request(list(range(9))))
    assert driver.fill() == 1
    driver.complete()
    return driver


def test_a_worker_is_asked_for_the_ends_of_moves_while_nothing_else_is_to_do() -> None:
    driver = make_loading_driver()
    assert driver.fill() == 0
    assert driver.loop.next_poll_at == pytest.approx(LOADING_POLL_S)
    driver.now = driver.loop.next_poll_at
    assert driver.fill() == 1
    assert driver.loop.next_poll_at == math.inf, "its answer wakes the driver"
    assert driver.worker.store is not None
    driver.worker.store.ends_at_once = True
    num_wakes = driver.num_wakes
    driver.complete()
    assert driver.num_wakes == num_wakes + 1, "another worker may take the request"
    assert driver.loop.next_poll_at == math.inf
    driver.run()
    assert len(driver.ended) == 1


def test_a_worker_is_lost_that_does_not_end_what_is_called_off() -> None:
    driver = make_loading_driver()
    assert driver.worker.store is not None
    driver.worker.store.heeds_cancels = False
    (group,) = driver.scheduler.loading
    driver.scheduler.abort(group)
    driver.now = 1.0
    assert driver.fill() == 1
    driver.complete()
    assert driver.loop.seconds_left(1.0) == pytest.approx(MAX_CANCEL_S)
    assert driver.loop.seconds_left(12.0) < 0
    assert "called off" in driver.loop.overdue(12.0)
