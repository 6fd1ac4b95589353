"""Starts and ends the processes of models as the plan says, and tells routers of it.

It runs in one event loop. Each start, each end and the life of each loaded model is a task; all of
them report to the plan, and one task does what the plan decides next.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from signalbox.stack.models.model_facts import ModelFacts
from signalbox.stack.models.model_plan import (
    IN_MEMORY,
    ModelPlan,
    Needs,
    PlannedModel,
)
from signalbox.stack.models.router_use import RouterUse, RouterUses
from signalbox.stack.processes.worker_supervisor import ServiceDied
from signalbox_contract.errors import (
    FailedPrecondition,
    NotFound,
    ResourceExhausted,
    Unavailable,
)
from signalbox_contract.model_state import ModelState

logger = logging.getLogger(__name__)

MAX_CALLS = 1024
"""Most calls that wait for models."""
RETRY_AFTER_S = 5.0
"""Seconds after which a call may be repeated that found too many others."""
SAMPLE_S = 5.0
"""Seconds between two measurements of a model that is in use."""


class StackOfModel(Protocol):
    """The processes of one model."""

    async def start(self) -> None:
        """Returns when the model is served. Raises ServiceDied, OSError or ValueError."""

    async def wait(self) -> None:
        """Never returns; raises ServiceDied when the model is served no longer."""

    async def stop(self) -> None:
        """Drains the processes and ends them."""

    def kill(self) -> None:
        """Ends the processes at once."""

    async def gone(self) -> None:
        """Returns when the processes have ended, which have been killed."""

    def measure(self) -> int:
        """Returns the bytes that the processes take. Blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedModel:
    """A model that can be asked for."""

    name: str
    other_names: tuple[str, ...]
    scheduler: str
    """Address of its scheduler while it is loaded."""
    facts: ModelFacts
    pool_bytes: int = 0
    """Bytes that its processes have reserved at their start and fill later: KV and swap space."""
    gpu_share: float = 0.0


class ModelStatus(NamedTuple):
    """A model as routers are told of it."""

    listed: ListedModel
    state: ModelState
    reason: str
    memory_bytes: int
    held_until: float
    """Time on this process's clock before which a failed model is not started again."""
    is_kept: bool
    num_starts: int
    start_s: float


class LoadTimes(NamedTuple):
    """Seconds that a call waited for the model's turn, and for its start."""

    waited_s: float
    started_s: float


class ModelLauncher:
    """The models of one `signalbox serve`."""

    def __init__(
        self,
        models: Iterable[ListedModel],
        plan: ModelPlan,
        make_stack: Callable[[str], StackOfModel],
        *,
        start_timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Makes a launcher that starts nothing before `run`.

        Args:
            make_stack: returns the processes of a model, which have not been started.
            start_timeout_s: seconds after which a start has failed.
        """
        self._listed = {model.name: model for model in models}
        self._by_name = {name: one for one in self._listed.values() for name in one.other_names}
        self._by_name |= self._listed
        self._plan = plan
        self._make_stack = make_stack
        self._start_timeout_s = start_timeout_s
        self._clock = clock
        self._stacks: dict[str, StackOfModel] = {}
        self._memory_bytes: dict[str, int] = {}
        self._waiters: dict[str, set[asyncio.Future[None]]] = {name: set() for name in self._listed}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._routers = RouterUses()
        self._news = asyncio.Event()
        self._changed = asyncio.Event()
        self._statuses: Sequence[ModelStatus] = ()
        self._drained_at: dict[str, int] = {}
        """The first revision in which each draining model drains, by its name."""
        self.revision = 0
        self._publish()

    # For routers and operators

    async def statuses(self) -> AsyncIterator[tuple[int, Sequence[ModelStatus]]]:
        """Yields the revision and all models, first and whenever one has changed."""
        told = 0
        while True:
            if self.revision > told:
                told = self.revision
                yield told, self._statuses
            else:
                await self._changed.wait()

    async def load(self, name: str) -> LoadTimes:
        """Returns when a model is loaded.

        Raises NotFound, ResourceExhausted for one that never fits or too many calls, Unavailable
        for one that fails.
        """
        model = self._planned(name)
        if model.state is ModelState.LOADED:
            return LoadTimes(0.0, 0.0)
        if sum(map(len, self._waiters.values())) >= MAX_CALLS:
            raise ResourceExhausted(f"{MAX_CALLS} calls wait for models already", RETRY_AFTER_S)
        asked_at, waiter = self._clock(), asyncio.get_running_loop().create_future()
        self._waiters[model.name].add(waiter)
        self._plan.add_caller(model.name, asked_at)
        self._tell()
        try:
            await waiter
        finally:
            self._waiters[model.name].discard(waiter)
            self._plan.remove_caller(model.name, self._clock())
            self._tell()
        waited_s = max(0.0, self._clock() - asked_at - model.start_s)
        return LoadTimes(waited_s, model.start_s)

    async def unload(self, name: str) -> None:
        """Returns when a model's processes have ended. Raises NotFound or FailedPrecondition."""
        model = self._planned(name)
        if model.is_kept:
            raise FailedPrecondition(f"{model.name} is kept loaded (--keep-warm)")
        if model.state is ModelState.LOADING:
            raise FailedPrecondition(f"{model.name} is starting; unload it when it is loaded")
        self._plan.withdraw(model.name, self._clock())
        if model.state is ModelState.LOADED:
            self._plan.drain(model.name, self._clock())
            self._spawn(self._end(model.name))
        self._tell()
        while model.state is ModelState.DRAINING:
            await self._changed.wait()

    @property
    def now(self) -> float:
        """Time on the clock of `held_until`."""
        return self._clock()

    def join(self) -> RouterUse:
        """Takes a router in, of whose requests nothing is known yet."""
        router = self._routers.join()
        self._wake()
        return router

    def report(self, router: RouterUse, num_live: Mapping[str, int], revision: int) -> None:
        """Takes what a router says of its requests: those at schedulers, by model."""
        router.num_live, router.revision = num_live, revision
        self._use()

    def leave(self, router: RouterUse) -> None:
        """Forgets a router."""
        self._routers.leave(router)
        self._use()

    def ask(self, name: str) -> None:
        """Loads a model if there is room for it beside those that are loaded."""
        self._plan.ask(name, self._clock())
        self._tell()

    def state(self, name: str) -> ModelState:
        return self._plan.models[name].state

    async def until_ready(self, asked: Iterable[str]) -> None:
        """Returns when a router is there, and none of the models that were asked for waits or
        starts."""
        names, pending = [*asked], (ModelState.WAITING, ModelState.LOADING)
        while not len(self._routers) or any(self.state(name) in pending for name in names):
            await self._changed.wait()

    # What the plan decides

    async def run(self) -> None:
        """Does what the plan decides, until it is cancelled."""
        measuring = asyncio.create_task(self._measure_used())
        try:
            while True:
                self._news.clear()
                actions = self._plan.next(self._clock())
                self._publish()
                for name in actions.starts:
                    self._spawn(self._start(name))
                for name in actions.drains:
                    self._spawn(self._end(name))
                with suppress(TimeoutError):
                    left = None if actions.wake_at is None else actions.wake_at - self._clock()
                    async with asyncio.timeout(left):
                        await self._news.wait()
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)

    async def stop(self) -> None:
        """Ends all models: those that are loaded drain, those that start are killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for name in [*self._stacks]:
            if self.state(name) is ModelState.LOADING:
                stack = self._stacks.pop(name)
                stack.kill()
                await stack.gone()
        await asyncio.gather(*map(self._stop, [*self._stacks]))

    def kill(self) -> None:
        """Ends the processes of all models at once."""
        for stack in self._stacks.values():
            stack.kill()

    async def _stop(self, name: str) -> None:
        if life := self._lives.pop(name, None):
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        stack = self._stacks[name]
        try:
            await stack.stop()
        finally:
            stack.kill()
            await stack.gone()
            self._stacks.pop(name, None)

    async def _start(self, name: str) -> None:
        stack = self._stacks[name] = self._make_stack(name)
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await stack.start()
        except TimeoutError:
            await self._lose(name, f"{name} did not start within {self._start_timeout_s:g} s")
        except Exception as error:  # else it would start for ever
            was_killed = isinstance(error, ServiceDied) and error.was_killed
            await self._lose(name, f"{name} cannot be started: {error}", may_retry=was_killed)
        else:
            self._plan.loaded(name, self._clock())
            logger.info("%s is loaded, after %.1f s", name, self._plan.models[name].start_s)
            self._lives[name] = asyncio.create_task(self._watch(name, stack))
            self._tell()

    async def _watch(self, name: str, stack: StackOfModel) -> None:
        """Measures a model that is loaded, and ends one whose processes cannot serve any longer."""
        try:
            await self._measure(name, stack, is_new=True)
            await stack.wait()
        except ServiceDied as error:
            del self._lives[name]
            if self.state(name) is ModelState.LOADED:
                self._plan.drain(name, self._clock())  # so that only this task ends it
                await self._lose(name, f"{name} is lost: {error}", may_retry=error.was_killed)
            self._tell()  # one that drains is ended by the task that waits for that

    async def _lose(self, name: str, reason: str, *, may_retry: bool = False) -> None:
        logger.error("%s", reason)
        stack = self._stacks[name]
        stack.kill()
        await stack.gone()
        self._stacks.pop(name, None)
        self._plan.failed(name, reason, self._clock(), may_retry=may_retry)
        self._tell()

    async def _end(self, name: str) -> None:
        """Ends a model after its last answer."""
        self._publish()
        since = self._drained_at[name]
        while name in self._lives and not self._routers.have_left(name, since=since):
            await self._changed.wait()
        await self._stop(name)
        logger.info("%s has ended", name)
        self._plan.ended(name, self._clock())
        self._tell()

    async def _measure_used(self) -> None:
        """Measures models that are in use, whose KV cache fills."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            used = [one.name for one in self._plan.models.values() if one.num_live]
            if not used:
                await self._changed.wait()
            for name in used:
                if stack := self._stacks.get(name):
                    await self._measure(name, stack)

    async def _measure(self, name: str, stack: StackOfModel, *, is_new: bool = False) -> None:
        """Measures a model.

        Args:
            is_new: True while its pools are still empty, and count as a whole.
        """
        num_bytes = await asyncio.to_thread(stack.measure)
        model = self._plan.models[name]
        if model.state is not ModelState.LOADED or self._stacks.get(name) is not stack:
            return
        self._memory_bytes[name] = num_bytes
        pool_bytes = self._listed[name].pool_bytes
        needed = num_bytes + pool_bytes if is_new else max(model.needs.num_bytes, num_bytes)
        self._plan.measured(name, Needs(needed, model.needs.gpu_share))
        self._tell()

    # News

    def _use(self) -> None:
        for name in self._listed:
            self._plan.use(name, self._routers.num_live(name), self._clock())
        self._tell()

    def _tell(self) -> None:
        """Lets the plan decide again, and all that wait look again."""
        self._publish()
        self._news.set()
        self._wake()

    def _wake(self) -> None:
        """Lets all that wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _publish(self) -> None:
        statuses = [self._status(model) for model in self._plan.models.values()]
        if statuses != self._statuses:
            self._statuses = statuses
            self.revision += 1
            self._wake()
            for one in statuses:
                if one.state is not ModelState.DRAINING:
                    self._drained_at.pop(one.listed.name, None)
                else:
                    self._drained_at.setdefault(one.listed.name, self.revision)
        for model in self._plan.models.values():
            self._settle(model)

    def _settle(self, model: PlannedModel) -> None:
        """Answers the calls that wait for a model that is loaded, or will not be."""
        if model.state in (ModelState.WAITING, ModelState.LOADING, ModelState.DRAINING):
            return
        for waiter in self._waiters[model.name]:
            if waiter.done():
                continue
            if model.state is ModelState.LOADED:
                waiter.set_result(None)
            elif fault := self._plan.never_fits(model.name):
                waiter.set_exception(ResourceExhausted(fault))
            elif model.state is ModelState.FAILED:
                left = max(0.0, model.held_until - self._clock())
                waiter.set_exception(Unavailable(model.reason, left))
            else:
                waiter.set_exception(Unavailable(f"{model.name} was unloaded", RETRY_AFTER_S))

    def _status(self, model: PlannedModel) -> ModelStatus:
        fault = "" if model.state in IN_MEMORY else self._plan.never_fits(model.name)
        return ModelStatus(
            listed=self._listed[model.name],
            state=ModelState.FAILED if fault else model.state,
            reason=fault or model.reason,
            memory_bytes=self._memory_bytes.get(model.name, 0),
            held_until=0.0 if fault else model.held_until,
            is_kept=model.is_kept,
            num_starts=model.num_starts,
            start_s=model.start_s,
        )

    def _planned(self, name: str) -> PlannedModel:
        listed = self._by_name.get(name)
        if listed is None:
            names = ", ".join(map(repr, self._listed))
            raise NotFound(f"no model is called {name[:100]!r}; there are {names}")
        return self._plan.models[listed.name]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
