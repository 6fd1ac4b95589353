"""One router's stream: its live requests, and the messages that wait to be sent to it."""

import asyncio
import time
from collections import deque

from rpc.errors import InvalidArgument, ResourceExhausted
from scheduler_svc.cluster import Cluster
from scheduler_svc.errors import RequestFailure
from scheduler_svc.publishing import Request, ended_request
from scheduler_svc.recording import UNRECORDED, RouterRecorder
from scheduler_svc.router_messages import RouterMessage
from scheduler_svc.sequence import SequenceGroup


class Session:
    """A `RouterSession` over a bounded buffer.

    A router that does not read loses its requests at once, and its stream when it reads again: what
    gRPC has taken to send it cannot be overtaken.
    """

    def __init__(
        self, cluster: Cluster, *, max_messages: int, recorder: RouterRecorder = UNRECORDED
    ) -> None:
        self.recorder = recorder
        self._cluster = cluster
        self._requests: dict[int, Request] = {}
        self._max_messages = max_messages
        self._messages: deque[RouterMessage | None] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._overflowed = False

    def send(self, message: RouterMessage) -> None:
        for ended in message.ended:
            self._requests.pop(ended.handle, None)
        if len(self._messages) < self._max_messages:
            self._put(message)
        elif not self._overflowed:
            self._overflowed = True
            asyncio.get_running_loop().call_soon(self.close)  # not while the cluster publishes

    async def next_message(self) -> RouterMessage | None:
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

    def _put(self, message: RouterMessage | None) -> None:
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
        request = self._cluster.add(group, session=self, handle=handle)
        if request is not None:
            self._requests[handle] = request

    def refuse(self, group: SequenceGroup, failure: RequestFailure, *, handle: int) -> None:
        """Ends a request that the cluster does not hear of."""
        group.failure = failure
        request = Request(group, self, handle)
        self.send(RouterMessage(ended=[ended_request(request, now=time.monotonic())]))

    def abort(self, handle: int) -> None:
        """Ends a request without an answer; a no-op if it has ended."""
        if request := self._requests.pop(handle, None):
            self._cluster.abort(request)

    def stop_sequence(self, handle: int, *, index: int, keep_tokens: int) -> None:
        """Ends one branch; a no-op if the request has ended."""
        if request := self._requests.get(handle):
            self._cluster.stop_sequence(request, index=index, keep_tokens=keep_tokens)

    def end(self) -> None:
        """Makes `next_message` return None once it has returned what waits."""
        self._put(None)

    def close(self) -> None:
        """Aborts what is left."""
        if self._requests:
            self.recorder.left(time.monotonic())
        for request in self._requests.values():
            self._cluster.abort(request)
        self._requests.clear()

    def _check_read(self) -> None:
        if self._overflowed:
            raise ResourceExhausted(
                f"{self._max_messages} messages are waiting; this router does not read"
            )
