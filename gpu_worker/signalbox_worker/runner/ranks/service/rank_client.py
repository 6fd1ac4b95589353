"""Calls RankService of other ranks: joins rank 0, meets ranks there, passes hidden states on."""

import logging
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import grpc

from signalbox_protos.rank.v1 import rank_pb2 as pb
from signalbox_protos.rank.v1 import rank_pb2_grpc
from signalbox_rpc.transport.tls import CLEAR, TlsConfig, channel_credentials
from signalbox_worker.runner.ranks.service import rank_codec
from signalbox_worker.runner.ranks.service.rank_messages import (
    Command,
    FailedStates,
    Link,
    Meet,
    Met,
    PassedStates,
    RankAddress,
    Report,
)
from signalbox_worker.runner.ranks.service.rank_servicer import RankLost, options_of

logger = logging.getLogger(__name__)

REACH_S = 10.0
"""Seconds in which a rank must be reached."""
_LOG_S = 10.0
_NUM_ROUND_TRIPS = 20
_PAYLOADS = (1 << 18, 1 << 20, 1 << 24)
"""Bytes of the messages by which a link's rate is measured."""
_LONG_NS = 100_000_000


def reach(command: Meet, *, rank: int, tls: TlsConfig = CLEAR) -> Met:
    """Reaches or measures what the command says, as one of the ranks."""
    others = [(other, to) for other, to in enumerate(command.addresses) if other != rank]
    if command.measuring is None:
        with ThreadPoolExecutor(max(1, len(others)), "greets") as pool:
            faults = pool.map(lambda one: greet(one[1], rank=rank, other=one[0], tls=tls), others)
        return Met(faults=tuple(filter(None, faults)))
    if command.measuring != rank:
        return Met()
    try:
        return Met(
            links=tuple(measure_link(to, rank=rank, other=one, tls=tls) for one, to in others)
        )
    except ConnectionError as error:
        return Met(faults=(str(error),))


def greet(to: RankAddress, *, rank: int, other: int, tls: TlsConfig) -> str:
    """Exchanges a message with a rank; returns what is wrong if that fails, else an empty text."""
    channel = _channel(to, tls)
    try:
        return _greet(channel, to, rank=rank, other=other)
    finally:
        channel.close()


def measure_link(to: RankAddress, *, rank: int, other: int, tls: TlsConfig) -> Link:
    """Measures the link to a rank. Raises ConnectionError that names it."""
    channel = _channel(to, tls)

    def taken_ns(num_bytes: int) -> int:
        payload, began_ns = bytes(num_bytes), time.perf_counter_ns()
        if fault := _greet(channel, to, rank=rank, other=other, payload=payload):
            raise ConnectionError(fault)
        return max(1, time.perf_counter_ns() - began_ns)

    try:
        taken_ns(0)  # connects
        round_trip_ns = int(statistics.median(taken_ns(0) for _ in range(_NUM_ROUND_TRIPS)))
        for num_bytes in _PAYLOADS:  # a larger one where that takes no time
            rate = num_bytes * 1e9 / max(1, (payload_ns := taken_ns(num_bytes)) - round_trip_ns)
            if payload_ns > _LONG_NS:
                break
        return Link(other, round_trip_ns, int(rate))
    finally:
        channel.close()


def _greet(
    channel: grpc.Channel, to: RankAddress, *, rank: int, other: int, payload: bytes = b""
) -> str:
    make_stub: Any = rank_pb2_grpc.RankServiceStub
    try:
        answer = make_stub(channel).Greet(
            pb.GreetRequest(rank=rank, payload=payload), timeout=REACH_S, wait_for_ready=True
        )
    except grpc.RpcError as error:
        return f"rank {other} at {to.address} within {REACH_S:g} s ({_details(error)})"
    return (
        "" if answer.rank == other else f"rank {other} at {to.address}: rank {answer.rank} answers"
    )


def _channel(to: RankAddress, tls: TlsConfig) -> grpc.Channel:
    if not tls.dials or to.address.startswith("unix:"):
        return grpc.insecure_channel(to.address, options=options_of(to.address))
    name = to.certified_name
    named = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.secure_channel(
        to.address, channel_credentials(tls), options=[*options_of(to.address), *named]
    )


def _open(to: RankAddress, tls: TlsConfig, *, within_s: float) -> grpc.Channel:
    """Returns a channel that has connected. Raises TimeoutError that names the address."""
    channel = _channel(to, tls)
    ready, ends_at = grpc.channel_ready_future(channel), time.monotonic() + within_s
    while True:
        try:
            ready.result(max(0.0, min(_LOG_S, ends_at - time.monotonic())))
        except grpc.FutureTimeoutError:
            if time.monotonic() < ends_at:
                logger.warning("the rank at %s cannot be reached yet", to.address)
                continue
            channel.close()
            raise TimeoutError(
                f"the rank at {to.address} cannot be reached within {within_s:g} s; let that port"
                " through"
            ) from None
        return channel


class FirstRank:
    """Rank 0, as another rank sees it. Reports from any thread, reads commands on one.

    Satisfies `Keys` of `device/process_group.py`.
    """

    lost: str | None = None
    """None: a rank that has lost rank 0 ends, whatever it waits for."""

    def __init__(
        self, address: RankAddress, *, tls: TlsConfig = CLEAR, within_s: float = REACH_S
    ) -> None:
        """Connects. Raises TimeoutError."""
        self._channel = _open(address, tls, within_s=within_s)
        make_stub: Any = rank_pb2_grpc.RankServiceStub  # generated without types
        self._stub = make_stub(self._channel)
        self._reports: SimpleQueue[pb.JoinRequest | None] = SimpleQueue()

    def report(self, report: Report, *, command: int = 0) -> None:
        self._reports.put(rank_codec.encode_report(report, command=command))

    def commands(self) -> Iterator[Command]:
        """Yields commands until rank 0 ends the worker; raises RankLost if it ends otherwise."""
        try:
            for message in self._stub.Join(iter(self._reports.get, None)):
                yield rank_codec.decode_command(message)
        except grpc.RpcError as error:
            raise RankLost(f"rank 0 is gone: {_details(error)}") from None
        except ValueError as error:
            raise RankLost(f"rank 0 has sent what no rank can read: {error}") from None

    def set(self, key: str, value: bytes) -> None:
        self._stub.SetKey(pb.SetKeyRequest(key=key, value=value))

    def get(self, key: str, timeout_s: float | None) -> bytes:
        """Waits for a key. Raises RankLost."""
        try:
            value: bytes = self._stub.GetKey(pb.GetKeyRequest(key=key), timeout=timeout_s).value
        except grpc.RpcError as error:
            raise RankLost(f"ranks did not meet: {_details(error)}") from None
        return value

    def end_reports(self) -> None:
        """Says that nothing more will be reported."""
        self._reports.put(None)

    def close(self) -> None:
        self.end_reports()
        self._channel.close()


class NextRank:
    """The rank that takes this one's hidden states."""

    def __init__(
        self,
        to: RankAddress,
        *,
        rank: int,
        on_lost: Callable[[], None],
        tls: TlsConfig = CLEAR,
        within_s: float = REACH_S,
    ) -> None:
        """Connects. Raises TimeoutError.

        Args:
            rank: that of the caller.
            on_lost: called on any thread when the rank takes no more.
        """
        self._channel = _open(to, tls, within_s=within_s)
        self._states: SimpleQueue[pb.PassRequest | None] = SimpleQueue()
        self._states.put(pb.PassRequest(rank=rank))
        self._sent: SimpleQueue[tuple[int, int]] = SimpleQueue()
        """Bytes of the messages that are not answered, and when they were sent."""
        self._answered: SimpleQueue[tuple[int, int]] = SimpleQueue()
        """Bytes, and nanoseconds until the answer."""
        make_stub: Any = rank_pb2_grpc.RankServiceStub
        self._call = make_stub(self._channel).Pass(iter(self._states.get, None))
        threading.Thread(
            target=self._take_answers, args=(on_lost,), name="answers", daemon=True
        ).start()

    def send(self, states: PassedStates | FailedStates) -> None:
        """Enqueues hidden states; raises RankLost if the rank has gone."""
        if self._call.done():
            raise RankLost("the rank of the next stage is gone")
        num_bytes = states.values.nbytes if isinstance(states, PassedStates) else 0
        self._sent.put((num_bytes, time.monotonic_ns()))
        self._states.put(rank_codec.encode_states(states))

    def pop_boundary(self) -> tuple[int, int]:
        """Returns the bytes that the rank has said to have since the last call, and the sum of the
        nanoseconds from `send` to its answers."""
        num_bytes = total_ns = 0
        with suppress(Empty):
            while True:
                sent_bytes, taken_ns = self._answered.get_nowait()
                num_bytes, total_ns = num_bytes + sent_bytes, total_ns + taken_ns
        return num_bytes, total_ns

    def _take_answers(self, on_lost: Callable[[], None]) -> None:
        with suppress(grpc.RpcError):
            for _ in self._call:
                num_bytes, sent_ns = self._sent.get()
                self._answered.put((num_bytes, time.monotonic_ns() - sent_ns))
        on_lost()

    def close(self) -> None:
        self._states.put(None)
        self._channel.close()


class NoNextRank:
    """Stands behind the last stage: takes no states."""

    def send(self, states: PassedStates | FailedStates) -> None: ...

    def pop_boundary(self) -> tuple[int, int]:
        return 0, 0


def _details(error: grpc.RpcError) -> str:
    return str(error.details()) if isinstance(error, grpc.Call) else str(error)
