"""The launcher does what the plan says, and answers all that wait; here no model is a process."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from signalbox.stack.models.model_facts import ModelFacts
from signalbox.stack.models.model_launcher import (
    ListedModel,
    ModelLauncher,
    ModelStatus,
)
from signalbox.stack.models.model_plan import ModelPlan, Needs, PlannedModel
from signalbox.stack.processes.worker_supervisor import ServiceDied
from signalbox_contract.errors import (
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from signalbox_contract.model_state import ModelState
from tests.waiting import eventually, run_ready_tasks

FACTS = ModelFacts(
    architecture="simulated", task="generate", max_model_len=64, file_bytes=1, weights_bytes=1
)


@asynccontextmanager
async def running(launcher: ModelLauncher) -> AsyncIterator[None]:
    """Lets the launcher work while the context lasts; ends all its models afterwards."""
    work = asyncio.create_task(launcher.run())
    try:
        yield
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        try:
            await launcher.stop()
        finally:
            launcher.kill()


class FakeStack:
    """A model that serves, dies and ends when the test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        loop = asyncio.get_running_loop()
        self.serves: asyncio.Future[None] = loop.create_future()
        self.dies: asyncio.Future[None] = loop.create_future()
        self.is_stopped = self.is_killed = False
        self.leaves = asyncio.Event()
        """Cleared by a test that lets killed processes take their time to end."""
        self.leaves.set()

    async def start(self) -> None:
        await asyncio.shield(self.serves)

    async def wait(self) -> None:
        await asyncio.shield(self.dies)

    async def stop(self) -> None:
        self.is_stopped = True
        await self.leaves.wait()
        await run_ready_tasks()  # several processes end, one after the other

    def kill(self) -> None:
        self.is_killed = True

    async def gone(self) -> None:
        assert self.is_stopped or self.is_killed
        await self.leaves.wait()

    def measure(self) -> int:
        return 50


class Machine:
    """A launcher of models a, b and large, with room for one of the first two."""

    def __init__(self) -> None:
        self.stacks: list[FakeStack] = []
        self.now = 0.0
        names = {"a": 50, "b": 50, "large": 101}
        listed = [
            ListedModel(
                name=name, other_names=(f"{name}.gguf",), scheduler=f"127.0.0.1:{i}", facts=FACTS
            )
            for i, name in enumerate(names)
        ]
        planned = [PlannedModel(name=name, needs=Needs(size)) for name, size in names.items()]
        self.launcher = ModelLauncher(
            listed,
            ModelPlan(planned, room=Needs(99)),
            self.make,
            start_timeout_s=60.0,
            clock=lambda: self.now,
        )

    def make(self, name: str) -> FakeStack:
        self.stacks.append(FakeStack(name))
        return self.stacks[-1]

    async def started(self, name: str, *, after: int = 0) -> FakeStack:
        """Returns the stack of a model that starts after so many others."""
        await eventually(lambda: len(self.stacks) > after and self.stacks[-1].name == name)
        return self.stacks[-1]

    async def loaded(self, name: str) -> FakeStack:
        before = len(self.stacks)
        call = asyncio.create_task(self.launcher.load(name))
        stack = await self.started(name, after=before)
        stack.serves.set_result(None)
        await call
        return stack


@asynccontextmanager
async def machine() -> AsyncIterator[Machine]:
    made = Machine()
    async with running(made.launcher):
        yield made
    left = [one for one in made.stacks if not (one.is_stopped or one.is_killed)]
    assert left == []


async def test_calls_for_one_model_share_its_start() -> None:
    async with machine() as here:
        calls = [asyncio.create_task(here.launcher.load(name)) for name in ("a", "a", "a.gguf")]
        stack = await here.started("a")
        stack.serves.set_result(None)
        await asyncio.gather(*calls)
        assert len(here.stacks) == 1
        assert (await here.launcher.load("a")).started_s == 0.0  # it is loaded


async def test_an_idle_model_ends_for_another_one() -> None:
    async with machine() as here:
        first = await here.loaded("a")
        await here.loaded("b")
        assert first.is_stopped
        assert here.launcher.state("a") is ModelState.UNLOADED


async def test_a_model_that_drains_ends_when_each_router_has_left_it() -> None:
    async with machine() as here:
        first = await here.loaded("a")
        router, other = here.launcher.join(), here.launcher.join()
        unload = asyncio.create_task(here.launcher.unload("a"))
        await eventually(lambda: here.launcher.state("a") is ModelState.DRAINING)
        drains_at = here.launcher.revision
        here.launcher.report(router, {"a": 1}, drains_at)
        here.launcher.report(other, {}, drains_at)
        await run_ready_tasks()
        assert not first.is_stopped  # an answer is under way
        here.launcher.report(router, {}, drains_at - 1)
        await run_ready_tasks()
        assert not first.is_stopped  # a request may be on its way
        here.launcher.report(router, {}, drains_at)
        await unload
        assert first.is_stopped


async def test_a_router_that_has_gone_keeps_no_model() -> None:
    async with machine() as here:
        await here.loaded("a")
        router = here.launcher.join()
        here.launcher.report(router, {"a": 1}, here.launcher.revision)
        unload = asyncio.create_task(here.launcher.unload("a"))
        await run_ready_tasks()
        assert not unload.done()
        here.launcher.leave(router)
        await unload


async def test_a_start_that_fails_is_told_to_all_that_wait_and_held_back() -> None:
    async with machine() as here:
        calls = [asyncio.create_task(here.launcher.load("a")) for _ in range(2)]
        stack = await here.started("a")
        stack.serves.set_exception(ServiceDied("worker 0 exited with status 1"))
        for answer in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(answer, Unavailable)
            assert answer.message == "a cannot be started: worker 0 exited with status 1"
            assert answer.retry_after_s == 10.0
        with pytest.raises(Unavailable):
            await here.launcher.load("a")
        assert len(here.stacks) == 1
        here.now += 10.0
        await here.loaded("a")


async def test_a_start_that_was_killed_is_repeated_for_those_that_wait() -> None:
    async with machine() as here:
        call = asyncio.create_task(here.launcher.load("a"))
        stack = await here.started("a")
        stack.serves.set_exception(ServiceDied("it was killed by SIGKILL", was_killed=True))
        stack = await here.started("a", after=1)
        stack.serves.set_result(None)
        await call


@pytest.mark.parametrize(
    ("was_killed", "expected"), [(True, ModelState.UNLOADED), (False, ModelState.FAILED)]
)
async def test_a_loaded_model_that_is_lost_may_start_again_if_it_was_killed(
    was_killed: bool, expected: ModelState
) -> None:
    async with machine() as here:
        stack = await here.loaded("a")
        stack.dies.set_exception(ServiceDied("a scheduler ended", was_killed=was_killed))
        await eventually(lambda: here.launcher.state("a") is expected)


async def test_a_model_that_dies_while_it_drains_ends() -> None:
    async with machine() as here:
        stack = await here.loaded("a")
        router = here.launcher.join()
        here.launcher.report(router, {"a": 1}, here.launcher.revision)
        unload = asyncio.create_task(here.launcher.unload("a"))
        await run_ready_tasks()
        stack.dies.set_exception(ServiceDied("a scheduler was killed by SIGKILL"))
        await unload


async def test_a_model_whose_processes_have_died_is_not_ended_a_second_time() -> None:
    async with machine() as here:
        stack = await here.loaded("a")
        stack.leaves.clear()
        stack.dies.set_exception(ServiceDied("killed", was_killed=True))
        await eventually(lambda: stack.is_killed)  # its memory is freed, which takes a while
        unload = asyncio.create_task(here.launcher.unload("a"))
        again = asyncio.create_task(here.launcher.load("a"))
        await run_ready_tasks()
        assert not again.done()  # nothing serves it
        stack.leaves.set()
        second = await here.started("a", after=1)
        second.serves.set_result(None)
        await asyncio.gather(unload, again)
        assert here.launcher.state("a") is ModelState.LOADED
        await here.launcher.unload("a")
        assert second.is_stopped


async def test_a_call_that_leaves_frees_the_place_of_its_model() -> None:
    async with machine() as here:
        stack = await here.loaded("a")
        router = here.launcher.join()
        here.launcher.report(router, {"a": 1}, here.launcher.revision)
        call = asyncio.create_task(here.launcher.load("b"))
        await eventually(lambda: here.launcher.state("b") is ModelState.WAITING)
        call.cancel()
        await eventually(lambda: here.launcher.state("b") is ModelState.UNLOADED)
        assert not stack.is_stopped


async def test_what_cannot_be_is_refused() -> None:
    async with machine() as here:
        with pytest.raises(NotFound, match="no model is called 'c'; there are 'a', 'b', 'large'"):
            await here.launcher.load("c")
        with pytest.raises(ResourceExhausted, match="raise --models-memory"):
            await here.launcher.load("large")
        call = asyncio.create_task(here.launcher.load("a"))
        stack = await here.started("a")
        with pytest.raises(FailedPrecondition, match="starting"):
            await here.launcher.unload("a")
        stack.serves.set_result(None)
        await call


async def test_an_operator_takes_a_model_out_of_the_queue() -> None:
    async with machine() as here:
        await here.loaded("a")
        here.launcher.report(here.launcher.join(), {"a": 1}, here.launcher.revision)
        call = asyncio.create_task(here.launcher.load("b"))
        await eventually(lambda: here.launcher.state("b") is ModelState.WAITING)
        await here.launcher.unload("b")
        with pytest.raises(Unavailable, match="b was unloaded"):
            await call


async def test_watchers_see_each_state_with_its_revision() -> None:
    async with machine() as here:
        seen: list[tuple[int, ModelState]] = []

        async def watch() -> None:
            async for revision, statuses in here.launcher.statuses():
                seen.append((revision, _of("a", statuses).state))

        watching = asyncio.create_task(watch())
        await here.loaded("a")
        await eventually(lambda: seen and seen[-1][1] is ModelState.LOADED)
        watching.cancel()
        assert [one for one, _ in seen] == sorted({one for one, _ in seen})
        assert seen[0][1] in (ModelState.UNLOADED, ModelState.WAITING)


def _of(name: str, statuses: Sequence[ModelStatus]) -> ModelStatus:
    return next(one for one in statuses if one.listed.name == name)
