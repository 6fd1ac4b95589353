"""One router's stream: its live requests, and the messages that wait to be sent to it."""

import asyncio
import time
from collections import deque

from contract.errors import InvalidArgument, ResourceExhausted
from contract.updates import RequestFailure, RequestUpdates
from scheduler_svc.recorder import UNRECORDED, RouterRecorder
from scheduler_svc.request_lifecycle import RequestLifecycle
from scheduler_svc.requests.live_requests import LiveRequest
from scheduler_svc.requests.sequence_group import SequenceGroup
from scheduler_svc.results.router_updates import finished_request


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
        self._requests: dict[int, LiveRequest] = {}
        self._max_messages = max_messages
        self._messages: deque[RequestUpdates | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._overflowed = False

    def send(self, updates: RequestUpdates) -> None:
        for finished in updates.finished_requests:
            self._requests.pop(finished.handle, None)
        if len(self._messages) < self._max_messages:
            self._put(updates)
        elif not self._overflowed:
            self._overflowed = True
            asyncio.get_running_loop().call_soon(self.abort_all)  # not amid a `send_updates`

    async def next_message(self) -> RequestUpdates | None:
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

    def _put(self, message: RequestUpdates | None) -> None:
        self._messages.append(message)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def add(self, group: SequenceGroup, *, handle: int) -> None:
        """Queues a request. Raises InvalidArgument if a live one has the handle.

        Raises ResourceExhausted if the router has lost its requests for not reading.
        """
        self._check_read()
        if handle in self._requests:
            raise InvalidArgument("handle", handle, "one that no live request has")
        request = self._lifecycle.add(group, session=self, handle=handle)
        if request is not None:
            self._requests[handle] = request

    def refuse(self, group: SequenceGroup, failure: RequestFailure, *, handle: int) -> None:
        """Ends a request that is not added."""
        group.failure = failure
        request = LiveRequest(group, self, handle)
        self.send(
            RequestUpdates(finished_requests=[finished_request(request, now=time.monotonic())])
        )

    def abort(self, handle: int) -> None:
        """Ends a request without an answer; a no-op if it has ended."""
        if request := self._requests.pop(handle, None):
            self._lifecycle.abort(request)

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one branch; a no-op if the request has ended."""
        if request := self._requests.get(handle):
            self._lifecycle.stop_sequence(request, index=index, keep_tokens=keep_tokens)

    def end(self) -> None:
        """Makes `next_message` return None once it has returned what waits."""
        self._put(None)

    def abort_all(self) -> None:
        """Aborts what is left."""
        if self._requests:
            self.recorder.left(time.monotonic())
        for request in self._requests.values():
            self._lifecycle.abort(request)
        self._requests.clear()

    def _check_read(self) -> None:
        if self._overflowed:
            raise ResourceExhausted(
                f"{self._max_messages} messages are waiting; this router does not read"
            )
