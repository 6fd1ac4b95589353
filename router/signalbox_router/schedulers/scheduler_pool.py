"""All schedulers of a router: chooses the scheduler of a request, and its next one.

Schedulers may serve different models; a request goes to those of its own.

A request of a session goes to the scheduler that had the session (`session_routes.py`), any other
to the least loaded one.

A request that loses its scheduler is sent again, with all its tokens so far, to the same scheduler
once it is back or to another: the scheduler recomputes them as it does when a worker is lost. The
tokens of a sequence depend on its seed and position alone, so the stream continues unchanged.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from signalbox_contract.errors import NotFound, RpcError, Unavailable
from signalbox_contract.request import SessionPause
from signalbox_contract.wording import counted
from signalbox_router.insight.request_span import route_span
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.request_output import end_unmeasured
from signalbox_router.schedulers.launcher.launched_models import LaunchedModel
from signalbox_router.schedulers.launcher.model_starts import ModelStarts, ModelUse
from signalbox_router.schedulers.model_client import ModelClient
from signalbox_router.schedulers.scheduler_client import SchedulerConnection
from signalbox_router.schedulers.served_models import RETRY_AFTER_S, ServedModels
from signalbox_router.schedulers.session_routes import ModelSession, SessionRoutes
from signalbox_rpc.transport.tls import CLEAR, TlsConfig

logger = logging.getLogger(__name__)

MAX_FRUITLESS_ATTEMPTS = 5
"""Losses in a row without a new token after which a request is not sent again: it may be the
cause."""

HEARS_WITHIN_S = 10.0
"""Seconds in which this router hears of the adapter that has replaced another one."""


@dataclass(slots=True, eq=False)
class _Placement:
    """A live request, the model that it was admitted for, and its connection."""

    request: ActiveRequest
    model: ServedModel
    connection: SchedulerConnection | None = None
    """None while it waits for a scheduler."""
    gives_up_at: float = 0.0
    """Time on the loop's clock when it ends if it still waits."""
    num_tokens: int = 0
    """Tokens that it had when it was sent."""
    num_fruitless: int = 0
    lost_at_ns: int | None = None
    """Wall-clock time when it lost its last scheduler, in nanoseconds."""
    refusal: NotFound | None = None
    """Error of the scheduler that does not have its adapter any more; the request waits until this
    router hears whether the adapter was replaced or unloaded."""
    start: asyncio.Future[None] | None = None
    """Wait for the launcher to load the model; None if it does not wait for that."""
    waits_since_ns: int = 0
    """Time on the monotonic clock when that began, in nanoseconds."""


class Schedulers:
    """Connections to the schedulers: each request's `SchedulerHandle`, and the
    `ConnectionListener` of each connection."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        model_client: ModelClient,
        model_poll_s: float,
        resume_wait_s: float,
        on_serving: Callable[[bool], None],
        tls: TlsConfig = CLEAR,
        model_names: tuple[str, ...] = (),
        starts: ModelStarts | None = None,
        on_models: Callable[[dict[str, bool]], None] = lambda _: None,
    ) -> None:
        """`on_serving` is called whenever serving begins or ends.

        Args:
            model_client: closed when `run` ends.
            model_names: names that requests may use beside the model's own.
            resume_wait_s: seconds that a request that has lost its scheduler waits for one.
            starts: requests that wait until the launcher has loaded their model.
            on_models: called with the names of the models, and whether each is served.
        """
        self.starts = starts or ModelStarts()
        self.models = ServedModels(
            model_names, absence_of=self._absence_of, launched=self.starts.launched
        )
        self._model_client = model_client
        self._connections = [
            SchedulerConnection(
                address,
                models=self._model_client,
                model_poll_s=model_poll_s,
                listener=self,
                tls=tls,
                is_expected=not self.starts.has_launcher,
            )
            for address in addresses
        ]
        self._resume_wait_s = resume_wait_s
        self._on_serving = on_serving
        self._on_models = on_models
        self._is_serving = False
        self._handles = itertools.count(1)
        self._placements: dict[int, _Placement] = {}
        self._routes = SessionRoutes()

    @property
    def num_live(self) -> int:
        return len(self._placements)

    @property
    def num_serving(self) -> int:
        """Schedulers that may get new requests."""
        return sum(
            one.is_open and one.served is not None and one.served in self.models.served
            for one in self._connections
        )

    def addresses_of(self, model: ServedModel) -> list[str]:
        """Returns the addresses of the schedulers that serve the model, or did when they were
        lost."""
        return [one.address for one in self._connections if one.last_served == model]

    def num_live_of(self, model: ServedModel) -> int:
        """Returns the number of requests at the schedulers of a model."""
        return sum(one.num_live for one in self._connections if one.served == model)

    def new_handle(self) -> int:
        return next(self._handles)

    async def run(self) -> None:
        """Keeps all connections until it is cancelled, which ends the live requests."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for connection in self._connections:
                    tasks.create_task(connection.run(), name=f"scheduler {connection.address}")
        finally:
            self._model_client.close()
            for placement in list(self._placements.values()):
                self._fail(placement, Unavailable("the router is shutting down", RETRY_AFTER_S))

    # Called by requests

    def submit(self, request: ActiveRequest, model: ServedModel) -> None:
        """Sends a request to a scheduler of its model: the one that had its session, or the one
        with the fewest of our requests. Raises Unavailable."""
        placement = _Placement(request, model)
        is_served = model in self.models.served
        if not is_served or not self._place(placement):
            if not self.starts.is_away(model.name):
                why = "the scheduler is lost" if is_served else "the served model has just changed"
                raise Unavailable(why, RETRY_AFTER_S)
            self._await_start(placement, is_new=True)
        self._placements[request.handle] = placement
        self.starts.used.set()

    def abort(self, handle: int) -> None:
        """Ends a request; does nothing if it has ended."""
        placement = self._placements.pop(handle, None)
        if placement is None:
            return
        if placement.connection is not None:
            placement.connection.abort(handle)
        _end_wait(placement)
        self.starts.used.set()

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one sequence; does nothing if the request has ended."""
        placement = self._placements.get(handle)
        if placement is None:
            return
        if placement.connection is not None:
            placement.connection.stop_sequence(handle, index=index, keep_tokens=keep_tokens)
        elif placement.request.is_complete:
            self._end_complete(placement)

    def pause(self, request: ActiveRequest, *, called_tool: bool) -> None:
        """Tells the scheduler how the answer of a request with a session has ended; call it before
        `abort`."""
        placement = self._placements.get(request.handle)
        if placement is not None and placement.connection is not None:
            placement.connection.pause(SessionPause(request.session, called_tool))

    # Called by connections

    def model_changed(self) -> None:
        """Tells when serving begins or ends; resumes the requests that wait."""
        before = self.models.served
        self.window_changed()
        if before[:1] != self.models.served[:1] and not self.starts.has_launcher:
            self._on_serving(bool(self.models.served))
        self._resume()

    def window_changed(self) -> None:
        """Takes over the windows and adapters, which may have changed."""
        launched = self.starts.launched
        offered = [
            _named(one.served, launched.at(one.address))
            for one in self._connections
            if one.served is not None
        ]
        absent = [one for one in self._connections if one.served is None]
        lost = [one.last_served for one in absent if one.last_served is not None]
        silent = [one for one in absent if one.last_served is None]
        num_silent = sum(launched.at(one.address) is None for one in silent)
        self.models.update(offered, lost, num_silent=num_silent)
        self.starts.served(one.name for one in launched.models if self.models.knows(one.name))
        self._on_models({one.name: self.models.knows(one.name) for one in self.models.known()})
        self._place_refused()

    def launched_changed(self) -> None:
        """Takes over the launcher's table. A model that is to end gets no new requests."""
        for connection in self._connections:
            launched = self.starts.launched.at(connection.address)
            connection.expect(launched is None or launched.is_loaded)
        self.model_changed()
        is_serving = bool(self.models.first)
        if is_serving is not self._is_serving:
            self._is_serving = is_serving
            self._on_serving(is_serving)

    def uses(self) -> list[ModelUse]:
        """Returns the requests for each of the launcher's models."""
        num_live = {one.address: one.num_live for one in self._connections}
        return [
            ModelUse(
                one.name, num_live.get(one.scheduler, 0), self.starts.num_waiting_for(one.name)
            )
            for one in self.starts.launched.models
        ]

    def _absence_of(self, model: ServedModel | None) -> str:
        of_model = [one for one in self._connections if model in (None, one.last_served)]
        return next((one.absence for one in of_model if one.absence), "")

    def lost(self, requests: list[ActiveRequest], *, is_faulty: bool) -> None:
        """Resumes requests whose scheduler is lost, or ends them if their tokens may be wrong."""
        for request in requests:
            placement = self._placements[request.handle]
            if is_faulty:
                self._fail(placement, Unavailable("the scheduler sent bad updates", RETRY_AFTER_S))
            elif request.is_complete:
                self._end_complete(placement)
            else:
                self._begin_again(placement)
        self._resume()

    def failed(self, request: ActiveRequest, error: RpcError, by: SchedulerConnection) -> None:
        """Ends a request, unless another scheduler may accept it or it was accepted before."""
        placement = self._placements[request.handle]
        others = [one for one in self._serving(placement.model) if one is not by]
        if isinstance(error, NotFound) and request.adapter and not request.attempt:
            self._await_successor(placement, error)
        elif isinstance(error, Unavailable) and (
            others or request.attempt or self.starts.is_away(placement.model.name)
        ):
            if self._begin_again(placement) and others:
                self._send(placement, self._choose(placement, others))
        else:
            self._fail(placement, error)

    # Adapters that were replaced before their requests arrived

    def _await_successor(self, placement: _Placement, error: NotFound) -> None:
        """Makes a request wait until this router knows what has become of its adapter."""
        loop = asyncio.get_running_loop()
        placement.connection, placement.refusal = None, error
        placement.gives_up_at = loop.time() + HEARS_WITHIN_S
        loop.call_at(placement.gives_up_at, self._give_up)
        self._place_refused()

    def _place_refused(self) -> None:
        """Sends requests whose adapter was replaced; ends those whose adapter was unloaded."""
        for one in list(self._placements.values()):
            if (refusal := one.refusal) is None:
                continue
            model = next((served for served in self.models.served if served == one.model), None)
            name = next(it.name for it in one.model.adapters if it.sha256 == one.request.adapter)
            adapter = None if model is None else model.adapter(name)
            if model is None:
                self._fail(one, Unavailable("the model is no longer served", RETRY_AFTER_S))
            elif adapter is None:
                self._fail(one, refusal)
            elif adapter.sha256 != one.request.adapter:
                one.model, one.refusal = model, None
                one.request.adapter = adapter.sha256
                if not self._place(one):
                    self._begin_again(one)

    # Continuing on another scheduler

    def _begin_again(self, placement: _Placement) -> bool:
        """Makes a request wait for a scheduler; returns False if it ends instead."""
        placement.lost_at_ns = time.time_ns()
        is_fruitless = placement.request.num_generated_tokens == placement.num_tokens
        placement.num_fruitless = placement.num_fruitless + 1 if is_fruitless else 0
        if placement.num_fruitless >= MAX_FRUITLESS_ATTEMPTS:
            reason = f"lost its scheduler {MAX_FRUITLESS_ATTEMPTS} times without a token between"
            self._fail(placement, Unavailable(f"the request has {reason}", RETRY_AFTER_S))
            return False
        loop = asyncio.get_running_loop()
        placement.request.begin_again()
        placement.connection, placement.gives_up_at = None, loop.time() + self._resume_wait_s
        if self.starts.launched.find(placement.model.name) is None:
            loop.call_at(placement.gives_up_at, self._give_up)
        elif placement.start is None:
            self._await_start(placement, is_new=False)
        return True

    def _await_start(self, placement: _Placement, *, is_new: bool) -> None:
        """Makes a request wait until the launcher has loaded its model."""
        start = self.starts.enter(
            placement.model.name, trace=placement.request.trace_context, is_new=is_new
        )
        placement.start, placement.gives_up_at = start, math.inf
        placement.waits_since_ns = placement.waits_since_ns or time.monotonic_ns()
        placement.lost_at_ns = placement.lost_at_ns or time.time_ns()
        start.add_done_callback(lambda _: self._start_ended(placement))

    def _start_ended(self, placement: _Placement) -> None:
        """Ends a request whose model does not start; `_resume` has sent the others."""
        start, placement.start = placement.start, None
        if start is None or start.cancelled() or placement.connection is not None:
            return
        error = start.exception()
        if isinstance(error, RpcError):
            self._fail(placement, error)
        elif self._place(placement):
            return
        elif self.starts.is_away(placement.model.name):  # it was unloaded at once
            self._await_start(placement, is_new=False)
        else:
            self._fail(placement, Unavailable("the served model has just changed", RETRY_AFTER_S))

    def _resume(self) -> None:
        waiting = [
            one
            for one in self._placements.values()
            if one.connection is None and one.refusal is None
        ]
        resumed = [one for one in waiting if self._place(one)]
        if resumed:
            logger.warning("going on, here or elsewhere: %s", counted(len(resumed), "request"))
        if len(resumed) < len(waiting) and all(one.served for one in self._connections):
            for one in waiting:
                if one.connection is None:
                    self._fail(one, Unavailable("the model is no longer served", RETRY_AFTER_S))

    def _place(self, placement: _Placement) -> bool:
        """Sends a request to a scheduler; returns False if there is none."""
        serving = self._serving(placement.model)
        num_needed = placement.request.num_needed_tokens
        # What was loaded, or the window, may have grown since the last query.
        adapter = placement.request.adapter
        serving = [one for one in serving if one.served and one.served.has(adapter)] or serving
        roomy = [one for one in serving if one.served and one.served.window >= num_needed]
        serving = roomy or serving
        if serving:
            self._send(placement, self._choose(placement, serving))
        return bool(serving)

    def _choose(
        self, placement: _Placement, among: list[SchedulerConnection]
    ) -> SchedulerConnection:
        session = placement.request.session
        if not session or len(self._connections) == 1:
            return min(among, key=lambda connection: connection.num_live)
        return self._routes.choose(ModelSession(placement.model.name, session), among)

    def _send(self, placement: _Placement, connection: SchedulerConnection) -> None:
        request, placement.connection = placement.request, connection
        _end_wait(placement)
        placement.num_tokens = request.num_generated_tokens
        if request.watch is not None:
            request.watch.send_to(connection.address)
        with route_span(request, scheduler=connection.address, since_ns=placement.lost_at_ns):
            connection.submit(request)

    def _serving(self, model: ServedModel) -> list[SchedulerConnection]:
        return [one for one in self._connections if one.is_open and one.served == model]

    def _give_up(self) -> None:
        """Ends requests that have waited too long."""
        now = asyncio.get_running_loop().time()
        for one in list(self._placements.values()):
            if one.connection is None and one.gives_up_at <= now and one.refusal is not None:
                self._fail(one, one.refusal)
            elif one.connection is None and one.gives_up_at <= now:
                waited = f"and none took the request over within {self._resume_wait_s:g} s"
                self._fail(one, Unavailable(f"the scheduler is lost, {waited}", RETRY_AFTER_S))

    def _end_complete(self, placement: _Placement) -> None:
        del self._placements[placement.request.handle]
        _end_wait(placement)
        placement.request.end(end_unmeasured(len(placement.request.prompt_token_ids)))

    def _fail(self, placement: _Placement, error: RpcError) -> None:
        del self._placements[placement.request.handle]
        _end_wait(placement)
        placement.request.fail(error)


def _end_wait(placement: _Placement) -> None:
    start, placement.start = placement.start, None
    if start is not None:
        start.cancel()
    if since_ns := placement.waits_since_ns:
        placement.request.model_wait_ns += time.monotonic_ns() - since_ns
        placement.waits_since_ns = 0


def _named(served: ServedModel, launched: LaunchedModel | None) -> ServedModel:
    """Returns a model with the names that the launcher has for it, also while it is not loaded."""
    return served if launched is None else replace(served, started_as=launched.names_of(""))
