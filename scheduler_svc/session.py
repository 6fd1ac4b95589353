"""One router's stream: its live requests, and the messages that wait to be sent to it."""

import asyncio
from collections.abc import AsyncIterator

from protos.scheduler.v1 import scheduler_pb2 as pb
from rpc.errors import InvalidArgument, ResourceExhausted
from scheduler_svc import codec
from scheduler_svc.cluster import Cluster, Request
from scheduler_svc.router_messages import RouterMessage


class Session:
    """A `RouterSession` over a bounded buffer; a router that does not read loses its stream."""

    def __init__(self, cluster: Cluster, *, max_messages: int) -> None:
        self._cluster = cluster
        self._requests: dict[int, Request] = {}
        self._messages: asyncio.Queue[RouterMessage | None] = asyncio.Queue(max_messages)
        self._overflowed = False

    def send(self, message: RouterMessage) -> None:
        for ended in message.ended:
            self._requests.pop(ended.handle, None)
        try:
            self._messages.put_nowait(message)
        except asyncio.QueueFull:
            self._overflowed = True

    async def messages(self) -> AsyncIterator[RouterMessage]:
        """Yields what is to be sent, until `end`. Raises ResourceExhausted if too much waits."""
        while (message := await self._messages.get()) is not None:
            if self._overflowed:
                raise ResourceExhausted(
                    f"{self._messages.maxsize} messages are waiting; this router does not read"
                )
            yield message

    def take(self, message: pb.ConnectRequest, *, now: float) -> None:
        """Does what the router asks. Raises InvalidArgument for a message of no known kind."""
        match message.WhichOneof("message"):
            case "add_request":
                self._add(message.add_request, now)
            case "abort_request":
                if request := self._requests.pop(message.abort_request.handle, None):
                    self._cluster.abort(request)
            case "stop_sequence":
                stop = message.stop_sequence
                if request := self._requests.get(stop.handle):
                    self._cluster.stop_sequence(
                        request, index=stop.index, keep_tokens=stop.keep_tokens
                    )
            case _:
                raise InvalidArgument("message", "none", "add_request, abort_request, ...")

    def _add(self, message: pb.AddRequest, now: float) -> None:
        if message.handle in self._requests:
            raise InvalidArgument("handle", message.handle, "one that no live request has")
        group = codec.group(message, now=now)
        request = self._cluster.add(group, session=self, handle=message.handle)
        if request is not None:
            self._requests[message.handle] = request

    def end(self) -> None:
        """Makes `messages` end once it has yielded what waits."""
        if self._messages.full():
            self._messages.get_nowait()
        self._messages.put_nowait(None)

    def close(self) -> None:
        """Aborts what is left."""
        for request in self._requests.values():
            self._cluster.abort(request)
        self._requests.clear()
