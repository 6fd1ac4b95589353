"""One router's stream: its live requests, and the messages that wait to be sent to it."""

import asyncio
import time
from collections import deque

from signalbox_contract.errors import InvalidArgument, ResourceExhausted
from signalbox_contract.request import Request, SessionPause
from signalbox_contract.updates import RequestFailure, RequestUpdates
from signalbox_scheduler.insight.recorder import UNRECORDED, RouterRecorder
from signalbox_scheduler.requests.sequence_group import SequenceGroup, new_group
from signalbox_scheduler.results.step_outcome import finished_request
from signalbox_scheduler.workers.request_lifecycle import RequestLifecycle


class ModelChanged:
    """Says that the router should ask for the served model again."""


class Heartbeat:
    """Says that the scheduler lives."""


MODEL_CHANGED, HEARTBEAT = ModelChanged(), Heartbeat()

Message = RequestUpdates | ModelChanged | Heartbeat


class Session:
    """A `RouterSession` over a bounded buffer.

    A router that does not read loses its requests at once, and its stream when it reads again: what
    gRPC has taken to send it cannot be overtaken.
    """

    def __init__(
        self,
        lifecycle: RequestLifecycle,
        *,
        max_messages: int,
        recorder: RouterRecorder = UNRECORDED,
    ) -> None:
        self.recorder = recorder
        self._lifecycle = lifecycle
        self._groups: dict[int, SequenceGroup] = {}  # by handle
        self._max_messages = max_messages
        self._messages: deque[Message | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._overflowed = False

    def send(self, updates: RequestUpdates) -> None:
        for finished in updates.finished_requests:
            self._groups.pop(finished.handle, None)
        if len(self._messages) < self._max_messages:
            self._put(updates)
        elif not self._overflowed:
            self._overflowed = True
            asyncio.get_running_loop().call_soon(self.abort_all)  # not amid a `send_updates`

    def model_changed(self) -> None:
        """Lets the router ask for the model again; a no-op if such a message waits."""
        self._put_once(MODEL_CHANGED)

    async def beat(self, *, interval_s: float) -> None:
        """Sends signs of life until it is cancelled."""
        while True:
            self._put_once(HEARTBEAT)
            await asyncio.sleep(interval_s)

    async def next_message(self) -> Message | None:
        """Returns what is to be sent next; None after `end`. For one reader.

        Raises ResourceExhausted if too much waits.
        """
        if not self._messages:
            # A queue for the one reader that there is costs more, as does a generator.
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        message = self._messages.popleft()
        if message is not None:
            self._check_read()
        return message

    def _put_once(self, message: Message) -> None:
        if message not in self._messages:
            self._put(message)

    def _put(self, message: Message | None) -> None:
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def add(self, request: Request, *, now: float) -> None:
        """Queues a request. Raises InvalidArgument if a live one has the handle.

        Raises ResourceExhausted if the router has lost its requests for not reading.
        """
        self._check_read()
        if request.handle in self._groups:
            raise InvalidArgument("handle", request.handle, "one that no live request has")
        group = new_group(request, reply_to=self, now=now)
        if self._lifecycle.add(group):
            self._groups[request.handle] = group

    def refuse(self, request: Request, failure: RequestFailure, *, now: float) -> None:
        group = new_group(request, reply_to=self, now=now)
        group.fail(failure)
        self.send(RequestUpdates(finished_requests=[finished_request(group, now=now)]))

    def abort(self, handle: int) -> None:
        """Ends a request without an answer; a no-op if it has ended."""
        if group := self._groups.pop(handle, None):
            self._lifecycle.abort(group)

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one branch; a no-op if the request has ended."""
        if group := self._groups.get(handle):
            self._lifecycle.stop_sequence(group, index=index, keep_tokens=keep_tokens)

    def pause(self, pause: SessionPause) -> None:
        self._lifecycle.sessions.pause(pause)

    def end(self) -> None:
        """Makes `next_message` return None once it has returned what waits."""
        self._put(None)

    def abort_all(self) -> None:
        if self._groups:
            self.recorder.left(time.monotonic())
        for group in self._groups.values():
            self._lifecycle.abort(group)
        self._groups.clear()

    def _check_read(self) -> None:
        if self._overflowed:
            raise ResourceExhausted(
                f"{self._max_messages} messages are waiting; this router does not read"
            )
