"""Requests that wait until the launcher has loaded their model, in the order of their arrival.

All that wait for a model share one call to the launcher, which goes on as long as one of them
waits. What ends a wait is that a scheduler serves the model to this router, whatever the
launcher says.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from signalbox_contract.errors import (
    Cancelled,
    DeadlineExceeded,
    ResourceExhausted,
    RpcError,
    Unavailable,
)
from signalbox_contract.model_state import ModelState
from signalbox_contract.wording import counted
from signalbox_router.schedulers.launcher.launched_models import (
    LaunchedModel,
    LaunchedModels,
)
from signalbox_rpc.metrics.histogram import Histogram, times
from signalbox_rpc.metrics.sample import Sample, counter, durations, gauge

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 5.0
"""Seconds after which clients are told to retry when a queue is full or a start takes long."""
AGAIN_S = 1.0
"""Seconds between two calls to the launcher for one model."""

TraceContext = tuple[str, str]
"""W3C traceparent and tracestate; empty without a trace."""
NO_TRACE: TraceContext = ("", "")


class LauncherLost(Unavailable):
    """The launcher does not answer."""


class Launcher(Protocol):
    """The launcher, as far as requests that wait need it."""

    async def load(self, name: str, *, timeout_s: float, trace: TraceContext = NO_TRACE) -> None:
        """Returns when the model is loaded. Raises LauncherLost, or the launcher's RpcError."""


class ModelUse(NamedTuple):
    """Requests of this router for one model."""

    name: str
    num_live: int
    num_waiting: int


class _Waiting(NamedTuple):
    """A request that waits."""

    is_new: bool
    """False if a scheduler had the request before: it outlasts a start that fails."""
    timer: asyncio.TimerHandle
    since: float


class _Queue:
    """The requests that wait for one model, first come, first served."""

    def __init__(self) -> None:
        self.waiting: dict[asyncio.Future[None], _Waiting] = {}
        self.calling: asyncio.Task[None] | None = None


class ModelStarts:
    """The queues of all models. Without a launcher there is no model that has one."""

    def __init__(
        self,
        launched: LaunchedModels | None = None,
        launcher: Launcher | None = None,
        *,
        timeout_s: float = 0.0,
        max_waiting: int = 0,
    ) -> None:
        """Makes empty queues.

        Args:
            timeout_s: seconds that a request waits; without a launcher none waits.
            max_waiting: new requests that wait for all models together; more are refused.
        """
        self.launched = launched or LaunchedModels()
        self.has_launcher = launcher is not None
        self.used = asyncio.Event()
        """Set when the use of a model may have changed; cleared by the task that reports it."""
        self.revised = asyncio.Event()
        """Set when the launcher has sent a new table, likewise."""
        self._launcher = launcher
        self._timeout_s = timeout_s
        self._max_waiting = max_waiting
        self._served = frozenset[str]()
        self._queues: dict[str, _Queue] = {}
        self._waited_ns: dict[str, Histogram] = {}
        self._num_unserved = Counter[tuple[str, str]]()

    @property
    def num_waiting(self) -> int:
        return sum(len(queue.waiting) for queue in self._queues.values())

    def num_waiting_for(self, name: str) -> int:
        queue = self._queues.get(name)
        return 0 if queue is None else len(queue.waiting)

    def is_away(self, name: str) -> bool:
        """Returns whether the launcher has to load the model before it is served."""
        model = self.launched.find(name)
        return model is not None and not model.is_loaded

    def served(self, names: Iterable[str]) -> None:
        """Takes over which of the launcher's models are served; ends the waits for them."""
        self._served = frozenset(names)
        for name in self._queues.keys() & self._served:
            for future in self._queues[name].waiting:
                _end(future)
        self.used.set()

    async def wait(self, name: str, *, trace: TraceContext = NO_TRACE) -> None:
        """Returns once the launcher's model of a name is served.

        Raises ResourceExhausted if too many requests wait or it cannot fit, Unavailable if it does
        not start, or another error of the launcher.
        """
        future = self.enter(name, trace=trace)
        try:
            await future
        finally:
            future.cancel()

    def enter(
        self, name: str, *, trace: TraceContext = NO_TRACE, is_new: bool = True
    ) -> asyncio.Future[None]:
        """Adds a request to those that wait for one of the launcher's models.

        The future ends when the model is served, or fails; the caller cancels it if the request
        ends. Raises what `wait` does.

        Args:
            is_new: False for a request that a scheduler had before.
        """
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if name in self._served:
            future.set_result(None)
            return future
        if is_new:
            self._check(name)
        timer = loop.call_later(self._timeout_s, self._late, future, name)
        queue = self._queues.setdefault(name, _Queue())
        queue.waiting[future] = _Waiting(is_new, timer, time.monotonic())
        future.add_done_callback(partial(self._left, name))
        if queue.calling is None:
            queue.calling = asyncio.create_task(self._call(name, trace), name=f"loads {name}")
            queue.calling.add_done_callback(_log_fault)
        self.used.set()
        return future

    def _check(self, name: str) -> None:
        """Raises the reason for which a new request does not wait."""
        model = self.launched.find(name)
        if model is not None and model.state is ModelState.FAILED:
            wait_s = model.held_until - time.monotonic()
            if wait_s > 0:
                raise _held(model, wait_s)
        waiting = [one for queue in self._queues.values() for one in queue.waiting.values()]
        if sum(one.is_new for one in waiting) >= self._max_waiting:
            raise ResourceExhausted(
                f"{counted(self._max_waiting, 'request')} wait for models that are loaded; send the"
                " request again",
                RETRY_AFTER_S,
            )

    def _late(self, future: asyncio.Future[None], name: str) -> None:
        model = self.launched.find(name)
        state = f", and is {model.state}" if model is not None else ""
        why = f": {model.reason}" if model is not None and model.reason else ""
        reason = f"model {name!r} was not loaded within {self._timeout_s:g} s{state}{why}"
        _end(future, Unavailable(reason, RETRY_AFTER_S))

    def _left(self, name: str, future: asyncio.Future[None]) -> None:
        """Forgets a request whose wait has ended; the last one ends the call to the launcher."""
        queue = self._queues[name]
        waited = queue.waiting.pop(future)
        waited.timer.cancel()
        if future.cancelled():
            self._num_unserved[name, "CANCELLED"] += 1
        elif isinstance(error := future.exception(), RpcError):
            self._num_unserved[name, error.code.name] += 1
        else:
            waited_ns = int((time.monotonic() - waited.since) * 1e9)
            self._waited_ns.setdefault(name, times()).observe(waited_ns)
        if not queue.waiting:
            del self._queues[name]
            if queue.calling is not None:
                queue.calling.cancel()
        self.used.set()

    async def _call(self, name: str, trace: TraceContext) -> None:
        """Has the model loaded, for as long as requests wait for it."""
        assert self._launcher is not None, "no launcher lists models"
        logger.info("model %s is asked for; it is loaded first", name)
        while True:
            wait_s = AGAIN_S
            try:
                await self._launcher.load(name, timeout_s=self._timeout_s, trace=trace)
            except (LauncherLost, DeadlineExceeded, Cancelled):
                pass  # the requests have deadlines of their own
            except RpcError as error:
                # The launcher has logged why a start failed.
                level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
                logger.log(level, "model %s is not loaded: %s", name, error)
                wait_s = getattr(error, "retry_after_s", None) or AGAIN_S
                self._refuse(name, error)
            # The scheduler serves the model, which this router hears soon.
            await asyncio.sleep(wait_s)

    def _refuse(self, name: str, error: RpcError) -> None:
        """Ends the waits of new requests; of all, if the launcher gives no time of another try."""
        is_final = getattr(error, "retry_after_s", None) is None
        for future, one in self._queues[name].waiting.items():
            if one.is_new or is_final:
                _end(future, error)

    def samples(self) -> Iterator[Sample]:
        """Yields counts of the launcher's models."""
        for model in self.launched.models:
            labels = {"model_name": model.name}
            number = self.num_waiting_for(model.name)
            yield gauge(
                "router_requests_waiting_for_model",
                "Requests that wait until their model is loaded.",
                number,
                **labels,
            )
            waited = self._waited_ns.get(model.name) or times()
            yield durations(
                "model_wait_seconds",
                "From a request's arrival until its model was loaded, of requests that waited.",
                waited,
                **labels,
            )
        for (name, code), number in self._num_unserved.items():
            yield counter(
                "model_waits_failed",
                "Requests that waited for a model in vain, by status code.",
                number,
                model_name=name,
                code=code,
            )

    async def close(self) -> None:
        """Fails the requests that wait."""
        calls = [one.calling for one in self._queues.values() if one.calling is not None]
        for queue in self._queues.values():
            for future in queue.waiting:
                _end(future, Unavailable("the router is shutting down", RETRY_AFTER_S))
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def _held(model: LaunchedModel, wait_s: float) -> Unavailable:
    reason = f": {model.reason}" if model.reason else ""
    return Unavailable(
        f"model {model.name!r} has failed to start{reason}; it may be started again in"
        f" {wait_s:.0f} s",
        wait_s,
    )


def _end(future: asyncio.Future[None], error: RpcError | None = None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _log_fault(call: "asyncio.Task[None]") -> None:
    if not call.cancelled() and (error := call.exception()) is not None:
        logger.error("the call to the launcher failed", exc_info=error)
