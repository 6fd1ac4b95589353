"""The loop of one worker: how far it goes ahead, and how it notices that the worker is gone."""

import asyncio

import pytest

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.workers.engine.engine import Engine
from signalbox_scheduler.workers.engine.lease_client import WorkerLostError
from tests.scheduler_svc.fake_worker import EncodedPlan, FakeWorker, expected
from tests.scheduler_svc.make import make_request, make_scheduler, outputs
from tests.waiting import EVENT_S, run_ready_tasks

PROMPT = [7]


class Channel:
    """A worker that answers while `answers` is set."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()  # else what is sent waits for flow control
        self.takes.set()
        self.is_sending = False
        self.answers = asyncio.Event()
        self.error: Exception | None = None
        self.num_sent = self.num_answered = 0
        self._worker = FakeWorker(block_size=4)
        self._plans: asyncio.Queue[EncodedPlan] = asyncio.Queue()

    async def send(self, plan: StepPlan) -> None:
        self.num_sent += 1
        assert self.num_sent - self.num_answered <= 2
        self._plans.put_nowait(EncodedPlan(plan))
        assert not self.is_sending, "gRPC takes one message of a stream at a time"
        self.is_sending = True
        await self.takes.wait()
        self.is_sending = False

    async def read(self) -> StepResult:
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        plan = await self._plans.get()
        await asyncio.sleep(0)
        self.num_answered += 1
        return self._worker.execute(plan)


def make_engine(
    channel: Channel, ended: "asyncio.Queue[StepOutcome]", *, step_timeout_s: float = 600.0
) -> Engine:
    def send_updates(outcome: StepOutcome) -> None:
        if outcome.ended:
            ended.put_nowait(outcome)

    return Engine(
        worker=channel,
        scheduler=make_scheduler(),
        send_updates=send_updates,
        step_timeout_s=step_timeout_s,
    )


async def test_a_worker_that_sleeps_is_woken_for_a_request_that_another_has_set_back() -> None:
    ended = asyncio.Queue[StepOutcome]()
    admission = AdmissionQueue()
    engines: list[Engine] = []

    def send_updates(outcome: StepOutcome) -> None:
        for _ in outcome.ended:
            ended.put_nowait(outcome)

    def wake_all() -> None:
        for engine in engines:
            engine.loop.wake()

    for _ in range(2):
        channel = Channel()
        channel.answers.set()
        engine = Engine(
            worker=channel,
            scheduler=make_scheduler(num_gpu_blocks=6, admission=admission),
            send_updates=send_updates,
            wake_all=wake_all,
        )
        engines.append(engine)
    running = [asyncio.create_task(engine.run()) for engine in engines]
    await run_ready_tasks()
    groups = [make_request([i + 1] * 8, max_tokens=12, arrival=float(i)) for i in range(2)]
    for group in groups:
        admission.add(group)
    engines[0].loop.wake()  # the other has looked, and sleeps
    async with asyncio.timeout(EVENT_S):
        for _ in groups:
            await ended.get()
    assert groups[1].num_preemptions == 1
    assert engines[1].loop.scheduler.num_steps
    for group in groups:
        assert outputs(group) == [expected(group.request.prompt_token_ids, num_tokens=12)]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_two_steps_are_in_flight_and_a_request_that_comes_later_wakes_the_loop() -> None:
    channel, ended = Channel(), asyncio.Queue[StepOutcome]()
    channel.answers.set()
    engine = make_engine(channel, ended)
    running = asyncio.create_task(engine.run())
    await run_ready_tasks()
    group = make_request(PROMPT, max_tokens=12)
    engine.loop.scheduler.admission.add(group)
    engine.loop.wake()
    async with asyncio.timeout(EVENT_S):
        await ended.get()
    assert outputs(group) == [expected(PROMPT, num_tokens=12)]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_request_that_comes_while_a_step_is_being_sent_goes_with_the_next() -> None:
    channel, ended = Channel(), asyncio.Queue[StepOutcome]()
    channel.takes.clear()
    engine = make_engine(channel, ended)
    groups = [make_request([7 + i], max_tokens=12, arrival=float(i)) for i in range(2)]
    engine.loop.scheduler.admission.add(groups[0])
    running = asyncio.create_task(engine.run())
    await run_ready_tasks()
    assert channel.is_sending
    engine.loop.scheduler.admission.add(groups[1])
    engine.loop.wake()
    channel.answers.set()  # the answer comes before its step is known to have been sent
    await run_ready_tasks()
    assert channel.num_sent == 1
    channel.takes.set()
    async with asyncio.timeout(EVENT_S):
        for _ in groups:
            await ended.get()
    assert [outputs(group) for group in groups] == [
        [expected(group.request.prompt_token_ids, num_tokens=12)] for group in groups
    ]
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_step_that_is_overdue_loses_the_worker() -> None:
    channel = Channel()
    engine = make_engine(channel, asyncio.Queue(), step_timeout_s=0.05)
    engine.loop.scheduler.admission.add(make_request(PROMPT))
    async with asyncio.timeout(EVENT_S):
        with pytest.raises(WorkerLostError, match=r"step 1 was not answered within 0\.5 s"):
            await engine.run()
    assert channel.num_sent == 2


async def test_a_step_that_the_worker_does_not_even_take_loses_it_too() -> None:
    channel = Channel()
    channel.takes.clear()
    engine = make_engine(channel, asyncio.Queue(), step_timeout_s=0.05)
    engine.loop.scheduler.admission.add(make_request(PROMPT))
    async with asyncio.timeout(EVENT_S):
        with pytest.raises(WorkerLostError, match=r"step 1 was not answered within 0\.5 s"):
            await engine.run()
    assert channel.num_sent == 1


async def test_a_worker_that_is_lost_while_nothing_runs_is_noticed() -> None:
    channel = Channel()
    engine = make_engine(channel, asyncio.Queue())
    channel.error = WorkerLostError("its step stream ended")
    channel.answers.set()
    async with asyncio.timeout(EVENT_S):
        with pytest.raises(WorkerLostError, match="step stream"):
            await engine.run()


async def test_a_worker_is_drained_when_what_it_had_has_ended() -> None:
    channel, ended = Channel(), asyncio.Queue[StepOutcome]()
    engine = make_engine(channel, ended)
    engine.loop.scheduler.admission.add(make_request(PROMPT))
    running = asyncio.create_task(engine.run())
    await run_ready_tasks()
    engine.loop.scheduler.drain()
    engine.loop.scheduler.admission.add(make_request(PROMPT, arrival=1.0))
    assert engine.loop.is_draining
    assert not engine.loop.is_drained
    channel.answers.set()
    async with asyncio.timeout(EVENT_S):
        await ended.get()
        while not engine.loop.is_drained:  # noqa: ASYNC110 (a step that was sent ahead is answered yet)
            await asyncio.sleep(0.001)
    assert len(engine.loop.scheduler.admission) == 1, "what is new is for others"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
