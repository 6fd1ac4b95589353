"""Runs responses in the background, and takes over those of routers that are gone.

A run ends when the store has its response. Its events are kept until then; later they are made from
the stored response.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from signalbox_contract.errors import Internal, RpcError, Unavailable
from signalbox_router.apis.stored_responses.event_pieces import replayed, split
from signalbox_router.apis.stored_responses.response_store import (
    ResponseStore,
    StoreFailed,
    StoreFull,
)
from signalbox_router.apis.stored_responses.stored_answer import BackgroundAnswer
from signalbox_router.apis.stored_responses.stored_response import (
    DamagedResponse,
    StoredResponse,
)
from signalbox_router.apis.stored_responses.types import StoredResponsesBody
from signalbox_router.prompt.tokenization.kept_tokens import NO_TOKENS
from signalbox_router.requests.active_request import Update

logger = logging.getLogger(__name__)

POLL_S = 1.0
"""Seconds between two looks at what other routers have changed."""
MAX_RUNS = 2
"""Most runs of a response; it fails when the router of the last one dies."""


class BackgroundGeneration(NamedTuple):
    """The generation of a response, and the writer of its events."""

    answer: BackgroundAnswer
    body: StoredResponsesBody
    updates: AsyncGenerator[Update]


@dataclass(slots=True, eq=False)
class BackgroundRun:
    """A response that this router generates."""

    tenant: str
    events: list[bytes] = field(default_factory=list)
    response: StoredResponse | None = None
    """The complete response, while the store does not have it yet."""
    has_begun: bool = False
    is_over: bool = False
    task: asyncio.Task[None] | None = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, events: bytes) -> None:
        self.events += split(events.decode())
        self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def follow(self, start: int) -> AsyncIterator[bytes]:
        """Yields the events from number `start` to the last one, future ones included."""
        while True:
            changed, is_over = self._changed, self.is_over
            while start < len(self.events):
                yield self.events[start]
                start += 1
            if is_over:
                return
            await changed.wait()


class BackgroundRuns:
    """The runs of one router."""

    def __init__(
        self,
        store: ResponseStore,
        resumed: Callable[[StoredResponse], Awaitable[BackgroundGeneration | None]],
    ) -> None:
        """Makes the runs of a router.

        Args:
            resumed: returns the work that generates a response again, or None if no model is served
                yet. Raises RpcError if the response can never be generated.
        """
        self._store = store
        self._resumed = resumed
        self._runs: dict[str, BackgroundRun] = {}
        self._adopted: dict[str, StoredResponse] = {}
        """Responses whose routers are gone, by id, until they run here."""
        self._watch: asyncio.Task[None] | None = None
        self._is_stopped = False

    def of(self, response_id: str, *, tenant: str) -> BackgroundRun | None:
        """Returns a run of the tenant."""
        run = self._runs.get(response_id)
        return run if run is not None and run.tenant == tenant else None

    async def start(self) -> None:
        await self._store.open()
        if self._store.is_shared:
            self._watch = asyncio.create_task(self._watch_store(), name="response store")

    async def begin(self, work: BackgroundGeneration) -> StoredResponse:
        """Stores a response and runs it. Raises StoreFailed or StoreFull."""
        response = work.answer.queued()
        await self._store.keep(response)
        self._launch(response, work)
        return response

    async def events(self, found: StoredResponse, start: int) -> AsyncIterator[bytes]:
        """Yields the events of a response from number `start` on, future ones included."""
        tenant = found.tenant
        while (run := self.of(found.id, tenant=tenant)) is None and found.is_running:
            found = await self._store.find(found.id, tenant=tenant)
            if found.is_running:  # at another router
                await asyncio.sleep(POLL_S)
        if run is None:
            for event in replayed(found.fields)[start:]:
                yield event
            return
        async for event in run.follow(start):
            yield event

    async def cancel(self, found: StoredResponse) -> StoredResponse:
        """Cancels a response that runs, here or at another router; returns its new state."""
        while found.is_running:
            body = found.fields | {"status": "cancelled"}
            cancelled = replace(found.with_body(body), request=b"")
            if await self._store.update(cancelled):
                self.forget(found.id, tenant=found.tenant)
                return cancelled
            # It has ended meanwhile, or another router has taken it over.
            found = await self._store.find(found.id, tenant=found.tenant)
        return found

    def forget(self, response_id: str, *, tenant: str) -> None:
        """Ends the run of a response that was cancelled or deleted, if it runs here."""
        if (run := self.of(response_id, tenant=tenant)) is not None:
            self._stop(run)

    async def drain(self, *, grace_s: float) -> None:
        """Returns when all runs have ended, at most after grace_s."""
        if self._watch is not None:
            self._watch.cancel()
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=grace_s)

    async def stop(self) -> None:
        """Cancels the runs and closes the store; other routers may take the responses over."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._watch is not None:
            self._watch.cancel()
        for run in self._runs.values():
            if run.response is not None:
                logger.error("a response is lost: %s could not be stored", run.response.id)
            self._stop(run)
        tasks = [run.task for run in self._runs.values() if run.task is not None]
        await asyncio.gather(*tasks, *filter(None, (self._watch,)), return_exceptions=True)
        await self._store.close()

    def _launch(self, response: StoredResponse, work: BackgroundGeneration) -> None:
        run = self._runs[response.id] = BackgroundRun(response.tenant)
        run.task = asyncio.create_task(self._run(run, response.id, work), name=response.id)

    def _stop(self, run: BackgroundRun) -> None:
        if run.task is not None:
            run.task.cancel()

    async def _run(self, run: BackgroundRun, response_id: str, work: BackgroundGeneration) -> None:
        try:
            run.add(work.answer.waiting())
            if (ended := await self._generated(run, work)) is not None:
                run.response, last_events = ended
                work.answer.is_stored = await self._put(run.response)
                run.add(last_events or await work.answer.last_event())
        finally:
            del self._runs[response_id]
            run.is_over = True
            run.wake()

    async def _generated(
        self, run: BackgroundRun, work: BackgroundGeneration
    ) -> tuple[StoredResponse, bytes] | None:
        """Returns the complete response, and its last events if it has failed; None if it was
        cancelled or deleted before its first token."""
        answer = work.answer
        try:
            async with aclosing(work.updates) as updates:
                async for update in updates:
                    if not run.has_begun:
                        run.has_begun = True
                        if not await self._is_mine(answer, update):
                            return None
                    run.add(answer.events(update))
            return answer.finished(), b""
        except Exception as error:
            return answer.failed(_shown(error), work.body)

    async def _is_mine(self, answer: BackgroundAnswer, update: Update) -> bool:
        """Stores the seed of a response that begins; False if it was cancelled or deleted."""
        response = answer.in_progress(update.request.params.sampling.seed)
        try:
            return await self._store.update(response)
        except (StoreFailed, StoreFull) as error:
            logger.warning("%s runs, but its seed could not be stored: %s", response.id, error)
            return True

    async def _put(self, response: StoredResponse) -> bool:
        """Stores a complete response; tries again for as long as the store fails. One that it can
        never hold fails, and is removed if even its failure is too large. Returns False then."""
        is_cut = False
        while True:
            try:
                await self._store.update(response)
                return not is_cut
            except StoreFull as error:
                if error.retry_after_s is None:  # it is larger than the store
                    self._store.failed(error)
                    if is_cut:
                        with contextlib.suppress(StoreFailed):
                            await self._store.remove(response.id, tenant=response.tenant)
                        return False
                    response, is_cut = _failed(response, error), True
                    continue
            except StoreFailed as error:
                logger.warning("%s could not be stored yet: %s", response.id, error)
            await asyncio.sleep(POLL_S)

    async def _watch_store(self) -> None:
        """Takes over responses of routers that are gone, and stops runs that were cancelled or
        taken over elsewhere."""
        while True:
            with contextlib.suppress(StoreFailed, StoreFull):
                await self._look()
            await asyncio.sleep(POLL_S)

    async def _look(self) -> None:
        if mine := [*self._runs]:
            running = await self._store.running(mine)
            for response_id in mine:
                run = self._runs.get(response_id)
                if response_id not in running and run is not None and run.response is None:
                    self._stop(run)
        damaged = []
        for row in await self._store.adopt():
            try:
                self._adopted[row.id] = StoredResponse.of(row)
            except DamagedResponse:
                damaged.append(row)
        for response in [*self._adopted.values()]:
            if response.id in self._runs or await self._resume(response):
                del self._adopted[response.id]
        for row in damaged:
            await self._store.remove(row.id, tenant=row.tenant)
            self._store.dropped(1, "damage")

    async def _resume(self, response: StoredResponse) -> bool:
        """Runs a response once more, or ends it; False if no model is there yet."""
        try:
            work = await self._resumed(response)
        except Exception as error:
            await self._put(_failed(response, _shown(error)))
            return True
        if work is None:
            return False
        logger.info("running %s again: its router is gone", response.id)
        if response.num_runs > MAX_RUNS:
            work = work._replace(updates=_lost())
        self._launch(response, work)
        return True


def _shown(error: Exception) -> RpcError:
    """Returns the error that the client gets; logs one of this server's own."""
    if isinstance(error, RpcError):
        return error
    logger.error("a response in the background failed", exc_info=error)
    return Internal("internal error; the server's log says more")


def _failed(response: StoredResponse, error: RpcError) -> StoredResponse:
    """Returns a response as failed, without output."""
    failure = {"code": "server_error", "message": error.message}
    state = {"status": "failed", "error": failure, "output": []}
    return replace(response.with_body(response.fields | state), kept=NO_TOKENS, request=b"")


async def _lost() -> AsyncGenerator[Update]:
    raise Unavailable(f"{MAX_RUNS} routers that ran it have ended")
    yield
