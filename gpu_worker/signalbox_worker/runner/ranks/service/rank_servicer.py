"""Serves RankService of one rank: hidden states for every rank, joining and meeting on rank 0.

The servers are gRPC's blocking ones: a runner works on a thread, not on an event loop. Between
hosts gRPC's keepalive ends a stream whose other end has stopped or can no longer be reached.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue
from typing import cast

import grpc

from signalbox_protos.rank.v1 import rank_pb2 as pb
from signalbox_protos.rank.v1 import rank_pb2_grpc
from signalbox_rpc.interceptors.call_handlers import Context
from signalbox_rpc.interceptors.peer_roles import WORKER, names_of
from signalbox_rpc.transport.tls import CLEAR, TlsConfig, server_credentials
from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.runner.ranks.service import rank_codec
from signalbox_worker.runner.ranks.service.rank_messages import Command, Hello, RankAddress, Report

logger = logging.getLogger(__name__)

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["RankService"].full_name

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_http_proxy", 0),
)
_KEEPALIVE: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 1_500),
    # Without it a stopped peer is noticed after a minute, whatever the keepalive says.
    ("grpc.http2.ping_timeout_ms", 1_500),
)
_SPARE_THREADS = 4
"""Threads for calls that end, beside one for each stream."""


def options_of(address: str) -> list[tuple[str, int]]:
    """Returns the options of a server or a channel between ranks.

    Those of one machine need no keepalive: rank 0 watches the processes. Where all of them pause,
    and a ping is late for that, it would end the worker.
    """
    return list(OPTIONS if address.startswith("unix:") else OPTIONS + _KEEPALIVE)


class RankLost(DeviceLost):
    """Another rank is gone, so that this one can compute nothing more."""


class Meeting:
    """The keys through which tensor-parallel ranks find each other. Safe from any thread."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self.lost: str | None = None
        """Reason why ranks that wait here will not meet."""

    def set(self, key: str, value: bytes) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, timeout_s: float | None) -> bytes:
        """Waits for a key. Raises RankLost, or TimeoutError that names the key."""
        with self._changed:
            is_there = self._changed.wait_for(
                lambda: key in self._values or self.lost is not None, timeout_s
            )
            if self.lost is not None:
                raise RankLost(self.lost)
            if not is_there:
                raise TimeoutError(f"no rank has set {key} in time")
            return self._values[key]

    def why_lost(self, *, within_s: float) -> str | None:
        """Waits until it is called off; returns the reason, or None if it was not."""
        with self._changed:
            self._changed.wait_for(lambda: self.lost is not None, within_s)
            return self.lost

    def call_off(self, reason: str) -> None:
        """Makes ranks that wait raise RankLost."""
        with self._changed:
            self.lost = reason
            self._changed.notify_all()


class JoinedRank:
    """The open stream of one rank: commands go out, reports come in."""

    def __init__(
        self, hello: Hello, reports: Iterator[pb.JoinRequest], certified_name: str
    ) -> None:
        self.hello = hello
        self.address = RankAddress(hello.address, certified_name)
        self._reports = reports
        self._commands: SimpleQueue[pb.JoinResponse | None] = SimpleQueue()

    def send(self, command: Command) -> None:
        """Enqueues a command; one to a rank that is gone is dropped."""
        self._commands.put(rank_codec.encode_command(command))

    def end(self) -> None:
        """Ends the stream, which tells the rank to end, after the commands before."""
        self._commands.put(None)

    def commands(self) -> Iterator[pb.JoinResponse]:
        yield from iter(self._commands.get, None)

    def reports(self) -> Iterator[tuple[int, Report]]:
        """Yields the reports with the numbers of their commands, until the rank is gone."""
        with suppress(Exception):  # gRPC's iterator raises an error without a type of its own
            for message in self._reports:
                yield rank_codec.decode_report(message)


class IncomingStates:
    """Hidden states that the stage before has passed, in the order of the commands."""

    def __init__(self) -> None:
        self._passed: SimpleQueue[tuple[pb.PassRequest, int] | None] = SimpleQueue()

    def put(self, message: pb.PassRequest | None) -> None:
        """Args: message: None says that the sender is gone."""
        self._passed.put(None if message is None else (message, time.monotonic_ns()))

    def take(self) -> tuple[pb.PassRequest, int]:
        """Waits for the states of the next command; returns when they came, too, in nanoseconds of
        the monotonic clock. Raises RankLost if none will come."""
        passed = self._passed.get()
        if passed is None:
            self._passed.put(None)
            raise RankLost("the rank of the stage before is gone")
        return passed


class RankServicer(rank_pb2_grpc.RankServiceServicer):
    """The calls that every rank serves."""

    def __init__(
        self, rank: int, on_link_lost: Callable[[int], None], tls: TlsConfig = CLEAR
    ) -> None:
        """Args: on_link_lost: called on any thread with a rank that passes no more states."""
        self.incoming = IncomingStates()
        self._rank = rank
        self._on_link_lost = on_link_lost
        self._tls = tls

    def Pass(
        self, requests: Iterator[pb.PassRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.PassResponse]:
        self._check_role(context)
        rank = next(requests).rank
        try:
            for message in requests:
                self.incoming.put(message)
                yield pb.PassResponse()
        finally:
            self.incoming.put(None)
            self._on_link_lost(rank)

    def Greet(self, request: pb.GreetRequest, context: grpc.ServicerContext) -> pb.GreetResponse:
        self._check_role(context)
        return pb.GreetResponse(rank=self._rank)

    def _check_role(self, context: grpc.ServicerContext) -> str:
        """Returns the name that the caller's certificate is for, or an empty text where none are
        shown; ends a call of what is no worker."""
        tls = self._tls
        if not tls.identifies_clients:
            return ""
        name = tls.peer_names.find(WORKER, names_of(cast(Context, context)))
        if name is None:
            context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                "ranks show a certificate for the role worker (--allow-peer-names)",
            )
        return name or ""


class FirstRankServicer(RankServicer):
    """The calls that rank 0 serves."""

    def __init__(
        self,
        on_join: Callable[[JoinedRank], str | None],
        meeting: Meeting,
        on_link_lost: Callable[[int], None],
        tls: TlsConfig = CLEAR,
    ) -> None:
        """Args: on_join: takes a rank on any thread; returns why it may not join, if it may not."""
        super().__init__(0, on_link_lost, tls)
        self._on_join = on_join
        self._meeting = meeting

    def Join(
        self, requests: Iterator[pb.JoinRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.JoinResponse]:
        name = self._check_role(context)
        hello = _first_report(requests)
        if not isinstance(hello, Hello):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first report is `hello`")
        joined = JoinedRank(hello, requests, name)
        context.add_callback(joined.end)
        if (refusal := self._on_join(joined)) is not None:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, refusal)
        yield from joined.commands()
        if self._meeting.lost is not None:
            context.abort(grpc.StatusCode.ABORTED, self._meeting.lost)

    def SetKey(self, request: pb.SetKeyRequest, context: grpc.ServicerContext) -> pb.SetKeyResponse:
        self._check_role(context)
        self._meeting.set(request.key, request.value)
        return pb.SetKeyResponse()

    def GetKey(self, request: pb.GetKeyRequest, context: grpc.ServicerContext) -> pb.GetKeyResponse:
        self._check_role(context)
        try:
            return pb.GetKeyResponse(value=self._meeting.get(request.key, context.time_remaining()))
        except RankLost as error:
            context.abort(grpc.StatusCode.ABORTED, str(error))
        except TimeoutError as error:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
        raise AssertionError("abort raises")


def _first_report(requests: Iterator[pb.JoinRequest]) -> Report | None:
    """Returns the first report; None if it cannot be read."""
    try:
        return rank_codec.decode_report(next(requests))[1]
    except ValueError as error:
        logger.warning("a rank cannot join: %s", error)
        return None


class RankServer:
    """A port of a rank."""

    def __init__(
        self, servicer: RankServicer, address: str, *, num_streams: int, tls: TlsConfig = CLEAR
    ) -> None:
        """Listens.

        Args:
            address: "unix:PATH", or "HOST:PORT" where port 0 picks one.
            num_streams: calls that last as long as the worker.

        Raises OSError, or TlsError.
        """
        threads = ThreadPoolExecutor(num_streams + _SPARE_THREADS, "ranks")
        self._server = grpc.server(threads, options=options_of(address))
        rank_pb2_grpc.add_RankServiceServicer_to_server(servicer, self._server)
        is_local = address.startswith("unix:")
        try:
            if tls.serves and not is_local:
                port = self._server.add_secure_port(address, server_credentials(tls))
            else:
                port = self._server.add_insecure_port(address)
        except RuntimeError:
            raise OSError(f"ranks cannot listen on {address}") from None
        self.address = address if is_local else f"{address.rpartition(':')[0]}:{port}"
        self._server.start()

    def close(self, *, grace_s: float | None = None) -> None:
        """Ends it, cutting off calls after a grace."""
        self._server.stop(grace_s).wait()
