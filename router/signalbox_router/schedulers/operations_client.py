"""Asks the schedulers what operators want to see: frames of what they decide, and explanations.

A router watches each scheduler once, for all clients that watch, and only while there is one. A
client that comes, or that has fallen behind, makes the scheduler send a full picture, which all
get.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from signalbox_contract.errors import NotFound, RpcError, Unavailable, from_code
from signalbox_protos.scheduler.v1 import (
    explain_pb2,
    scheduler_pb2_grpc,
    stats_pb2,
    watch_pb2,
)
from signalbox_rpc.interceptors.status import words_of
from signalbox_rpc.limits.watchers import Watcher, Watchers
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.tls import CLEAR, TlsConfig, TlsError

RETRY_S = 1.0
TIMEOUT_S = 5.0


class News(NamedTuple):
    """A frame of a scheduler, or why there are none."""

    scheduler: str
    frame: watch_pb2.Frame | None = None
    lost: str = ""


class SchedulerOperations:
    """The schedulers of a router as operators see them. Connects when it is asked."""

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        tls: TlsConfig = CLEAR,
        away: Callable[[str], str] = lambda _: "",
    ) -> None:
        """Makes them.

        Args:
            away: returns why there is no scheduler at an address; empty if there may be one.
        """
        self._tls, self._away = tls, away
        self._watchers = Watchers[News]()
        self._streams = [_FrameStream(one, self._watchers, tls=tls, away=away) for one in addresses]
        self._tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def joined(self) -> Iterator[Watcher[News]]:
        """Adds a watcher for as long as the context lasts. Raises ResourceExhausted."""
        with self._watchers.joined() as watcher:
            if len(self._watchers) == 1:
                for stream in self._streams:
                    stream.start(self._tasks)
            for stream in self._streams:
                stream.ask()
            try:
                yield watcher
            finally:
                if len(self._watchers) == 1:
                    for stream in self._streams:
                        stream.stop()

    def end(self) -> None:
        """Ends the streams of all clients that watch."""
        self._watchers.end(Unavailable("the router is shutting down", RETRY_S))

    async def close(self) -> None:
        """Waits for the connections to close."""
        for stream in self._streams:
            stream.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def explain(
        self, request: explain_pb2.ExplainRequest, *, scheduler: str = ""
    ) -> tuple[str, explain_pb2.ExplainResponse]:
        """Returns the address of the scheduler that knows a request, and its explanation.

        Args:
            scheduler: address of the only one to ask; empty is all.

        Raises NotFound or Unavailable.
        """
        known = [stream.address for stream in self._streams]
        if scheduler and scheduler not in known:
            raise NotFound(f"there is no scheduler at {scheduler!r}; there are: {', '.join(known)}")
        addresses = [scheduler] if scheduler else known
        answers = await asyncio.gather(*(self._ask(one, "Explain", request) for one in addresses))
        pairs = list(zip(addresses, answers, strict=True))
        found = [(address, one) for address, one in pairs if not isinstance(one, RpcError)]
        if len(found) > 1:
            places = ", ".join(address for address, _ in found)
            raise NotFound(f"several schedulers know such a request: {places}; name one of them")
        if found:
            return found[0]
        refusals = [(address, one) for address, one in pairs if isinstance(one, RpcError)]
        for address, error in refusals:
            if not isinstance(error, NotFound):
                raise Unavailable(f"the scheduler at {address} does not answer: {error}", RETRY_S)
        raise refusals[0][1]

    async def sessions(
        self, max_sessions: int
    ) -> dict[str, Sequence[stats_pb2.SessionSummary] | RpcError]:
        """Returns the sessions of each scheduler by its address, those last used first."""
        request = stats_pb2.GetStatsRequest(max_sessions=max_sessions)
        addresses = [stream.address for stream in self._streams]
        answers = await asyncio.gather(*(self._ask(one, "GetStats", request) for one in addresses))
        return {
            address: answer if isinstance(answer, RpcError) else answer.sessions
            for address, answer in zip(addresses, answers, strict=True)
        }

    async def _ask(self, address: str, method: str, request: Any) -> Any:
        """Returns the answer of a scheduler, or an RpcError."""
        if away := self._away(address):
            return NotFound(away)
        try:
            async with open_channel(address, tls=self._tls) as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                return await getattr(stub, method)(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return from_code(error.code().value[0], words_of(error))
        except TlsError as error:
            return Unavailable(str(error))


class _FrameStream:
    """The frames of one scheduler, for all watchers."""

    def __init__(
        self,
        address: str,
        watchers: Watchers[News],
        *,
        tls: TlsConfig,
        away: Callable[[str], str],
    ) -> None:
        self.address = address
        self._watchers = watchers
        self._tls, self._away = tls, away
        self._task: asyncio.Task[None] | None = None
        self._wants = asyncio.Event()
        self._is_asked = False
        """True from when a full picture is asked for until it comes."""
        self._lost = ""

    def start(self, tasks: set[asyncio.Task[None]]) -> None:
        """Begins to watch; the task is in `tasks` until it has ended."""
        self._task = asyncio.create_task(self._run(), name=f"frames of {self.address}")
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def ask(self) -> None:
        """Asks for a full picture, unless one is on its way."""
        if not self._is_asked:
            self._is_asked = True
            self._wants.set()

    async def _run(self) -> None:
        while True:
            lost = self._away(self.address) or await self._follow()
            for watcher in self._watchers:
                if lost != self._lost or not watcher.follows(self.address):
                    watcher.put(self.address, News(self.address, lost=lost), is_full=True)
            self._lost = lost
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> str:
        """Passes frames on until the stream ends; returns why it has."""
        self._wants.clear()
        self._is_asked = True  # a stream begins with a full picture
        try:
            async with open_channel(self.address, tls=self._tls) as channel:
                stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
                async for response in stub.Watch(self._requests()):
                    self._take(response.frame)
        except grpc.aio.AioRpcError as error:
            return words_of(error)
        except TlsError as error:
            return str(error)
        return "the scheduler has ended the stream"

    async def _requests(self) -> AsyncIterator[watch_pb2.WatchRequest]:
        while True:
            await self._wants.wait()
            self._wants.clear()
            yield watch_pb2.WatchRequest()

    def _take(self, frame: watch_pb2.Frame) -> None:
        self._lost = ""
        if frame.is_full:
            self._is_asked = False
        news = News(self.address, frame)
        for watcher in self._watchers:
            watcher.put(self.address, news, is_full=frame.is_full)
            if not watcher.follows(self.address):
                self.ask()
