"""A rank but the first: obeys rank 0, and ends when rank 0 does.

`LocalRank` runs `main` with RANK and ADDRESS, which is rank 0's Unix socket; where others start
ranks, they run `follow`.
A thread reads commands, so that the process ends with rank 0 even while it computes, or waits in a
collective that no other rank joins any more. It ends with status 0 only if rank 0 has ended the
worker in order: a supervisor then starts none of the ranks again. Signals that a terminal or a
service manager sends to all processes are rank 0's to act on.
"""

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from signalbox_contract.model import Adapter
from signalbox_contract.sections.store_moves import StoreMoves
from signalbox_contract.step import Step
from signalbox_rpc.lifetime.stop_signals import STOP_SIGNALS, take_stop_signals
from signalbox_worker.batch.batch import Batch
from signalbox_worker.device.device_errors import DeviceLost, is_device_lost
from signalbox_worker.ranks import links
from signalbox_worker.ranks.rank_adapters import RankAdapters
from signalbox_worker.ranks.rank_blocks import RankBlocks
from signalbox_worker.ranks.rank_network import JOIN_S, RankNetwork
from signalbox_worker.ranks.rank_shard import RankShard, describe_rank, load_shard
from signalbox_worker.ranks.rank_status import RankStatus
from signalbox_worker.ranks.service.meeting import RankLost
from signalbox_worker.ranks.service.rank_client import REACH_S, FirstRank, NextRank
from signalbox_worker.ranks.service.rank_messages import (
    AddAdapter,
    Ask,
    CacheReady,
    CloseBlocks,
    Command,
    CopyBlock,
    EndedMoves,
    Failure,
    ForgetAdapter,
    Hello,
    InitCacheEngine,
    InStep,
    Loaded,
    LogLine,
    Meet,
    OpenAdapter,
    OpenBlocks,
    RankAddress,
    RemoveAdapter,
    RemoveBlock,
    Report,
    Start,
)
from signalbox_worker.ranks.service.rank_servicer import RankServer, RankServicer
from signalbox_worker.ranks.stage import FailedBefore, Stage
from signalbox_worker.ranks.versions import versions

logger = logging.getLogger("signalbox_worker.ranks.follower_process")

_LEAVE_S = 0.5
_VERDICT_S = 4.0
"""Seconds for rank 0, which knows more, to end a rank that has lost another one."""


class Follower:
    """Executes one command after the other."""

    def __init__(
        self,
        rank: int,
        network: RankNetwork,
        *,
        on_end: Callable[[int], None],
        told: Start | None = None,
        status: RankStatus | None = None,
        within_s: float = REACH_S,
    ) -> None:
        """Joins rank 0. Raises TimeoutError if that cannot be reached.

        Args:
            on_end: called on any thread with the status to exit with.
            told: what the command line of this rank says; None obeys rank 0 alone.
            status: what operators see of this rank, if they do.
        """
        self._rank = rank
        self._status = status
        self._on_end = on_end
        self._network, tls = network, network.tls
        self._servicer = RankServicer(rank, self._on_link_lost, tls)
        self._server = RankServer(self._servicer, network.address, num_streams=1, tls=tls)
        first = RankAddress(network.first_address, network.first_name)
        self._first = FirstRank(first, tls=tls, within_s=within_s)
        self._first.report(Hello(rank, versions(), network.address, os.getpid(), told))
        self._commands: SimpleQueue[tuple[Command, int] | None] = SimpleQueue()
        """Each with the time of the monotonic clock at which it came, in nanoseconds."""
        self._num_commands = self._arrived_ns = 0
        self._shard: RankShard | None = None
        self._adapters = RankAdapters(
            lambda name, folder: self._own.open_adapter(name, folder), self._first.report
        )
        self._blocks = RankBlocks(self._first.report)
        self._reader = threading.Thread(target=self._read, name="rank 0", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        status = 0
        try:
            for command in self._first.commands():
                if isinstance(command, OpenAdapter):
                    self._adapters.open(command)
                elif isinstance(command, CopyBlock):
                    self._blocks.copy(command)
                else:
                    self._commands.put((command, time.monotonic_ns()))
        except RankLost as error:
            logger.error("%s", error)
            time.sleep(_LEAVE_S)  # if rank 0 has ended, what watches it ends this process
            status = 1
        if self._shard is not None:
            self._shard.close()
        self._commands.put(None)
        self._on_end(status)

    def _next(self) -> Command | None:
        while True:
            next_one = self._commands.get()
            if next_one is None or not isinstance(next_one[0], ForgetAdapter):
                break
            self._adapters.forget(next_one[0].number)
        self._num_commands += 1
        if next_one is None:
            return None
        command, self._arrived_ns = next_one
        return command

    def report(self, report: Report) -> None:
        self._first.report(report, command=self._num_commands)

    def serve(self) -> None:
        """Executes commands until rank 0 ends; raises errors after which the rank cannot go on."""
        try:
            self._serve()
        except DeviceLost:  # if that is because of another rank, rank 0 ends this one
            self._reader.join(_VERDICT_S)
            raise
        self._reader.join()  # which has called `on_end`

    def _serve(self) -> None:
        while isinstance(command := self._next(), Meet):
            self.report(links.obey(command, rank=self._rank, tls=self._network.tls))
        if command is None:
            return
        assert isinstance(command, Start)
        try:
            self._load(command)
        except Exception as error:
            self._fail(error)
            while self._next() is not None:  # rank 0 fails at the same, most often, and says it
                pass
            return
        while (command := self._next()) is not None:
            self._obey(command)

    def finish(self) -> None:
        """Gives what was reported time to leave; rank 0 kills a rank that reports no more."""
        self._first.end_reports()
        time.sleep(_LEAVE_S)

    def _on_link_lost(self, rank: int) -> None:
        """Ends this rank, unless rank 0 does."""
        threading.Thread(target=self._end_without, args=(rank,), daemon=True).start()

    def _end_without(self, rank: int) -> None:
        self._reader.join(_VERDICT_S)
        if self._reader.is_alive():
            logger.error("the link with rank %d is lost", rank)
            self.finish()
            self._on_end(1)

    def close(self) -> None:
        self._adapters.close()
        self._blocks.close()
        self._first.close()
        self._server.close()

    def _load(self, start: Start) -> None:
        tls, below = self._network.tls, start.next_rank
        next_rank = None
        if below is not None:
            on_lost = partial(self._on_link_lost, below)
            next_rank = NextRank(start.addresses[below], rank=self._rank, on_lost=on_lost, tls=tls)
        shard = self._shard = load_shard(start, self._first)
        incoming = self._servicer.incoming if start.parallel.stage else None
        self._stage = Stage(shard, incoming, next_rank)
        self._description = describe_rank(start, shard.layers)
        self.report(Loaded.of(shard.model))
        if self._status is not None:
            self._status.set_ready(self._stage, start.parallel.stage)

    @property
    def _own(self) -> RankShard:
        assert self._shard is not None, "loaded"
        return self._shard

    def _obey(self, command: Command) -> None:
        """Executes a command; reports a failure, but ends at that of a section or an adapter."""
        match command:
            case Step(store_moves=None):
                self._own.apply(command)
                return
            case Step() | Ask.ENDED_MOVES | RemoveBlock():
                self._move(command)
                return
            case OpenBlocks():
                self._blocks.open(command, self._own.transfers)
                return
            case CloseBlocks():
                self._blocks.close_blocks(command)
                return
            case AddAdapter():
                self._own.add_adapter(self._adapters.take(command.number))
                return
            case RemoveAdapter():
                self._own.remove_adapter(Adapter(name=command.name, sha256=command.sha256))
                return
        try:
            self._perform(command)
        except FailedBefore:
            pass  # the rank that has failed says so
        except Exception as error:
            if is_device_lost(error):
                raise
            self._fail(error)

    def _move(self, command: Command) -> None:
        transfers = self._own.transfers
        match command:
            case Step(store_moves=StoreMoves() as moves):
                transfers.begin(moves)
            case Ask.ENDED_MOVES:
                is_open = transfers.store.is_open
                self.report(EndedMoves(tuple(transfers.pop_ended()), is_open))
            case RemoveBlock():
                transfers.store.remove(command.key)

    def _perform(self, command: Command) -> None:
        match command:
            case Batch():
                self._stage.execute(
                    command, command=self._num_commands, arrived_ns=self._arrived_ns
                )
            case Ask.PROFILE:
                self.report(replace(self._own.profile(), ranks=(self._description,)))
            case Ask.SYNC:
                self.report(InStep(self._own.num_collectives))
            case InitCacheEngine():
                self._own.init_cache_engine(**command._asdict())
                self.report(CacheReady(self._own.num_graphs))

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, MemoryError | ValueError | OSError):
            logger.exception("a command failed")
        self.report(Failure.of(error))


class _Forwarding(logging.Handler):
    """Sends warnings and errors to the log of rank 0."""

    def __init__(self, follower: Follower) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(message)s"))
        self._follower = follower

    def emit(self, record: logging.LogRecord) -> None:
        self._follower.report(LogLine(record.levelno, record.name, self.format(record)))


def main() -> None:
    """Runs a rank that rank 0 has started."""
    rank, first = int(sys.argv[1]), sys.argv[2]
    address = f"{first.rpartition('/')[0]}/{rank}"
    _leave_signals_to_rank_0()  # which ends this one with itself
    _run(rank, RankNetwork(address=address, first_address=first), within_s=REACH_S)


def _leave_signals_to_rank_0() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    take_stop_signals()


def follow_check(rank: int, network: RankNetwork) -> None:
    """Runs a rank whose links rank 0 measures. Raises TimeoutError, and does not return."""
    _run(rank, network, within_s=JOIN_S)


def follow(rank: int, network: RankNetwork, told: Start, status: RankStatus) -> None:
    """Runs a rank that others have started. Raises TimeoutError if rank 0 does not listen in time,
    and does not return."""
    logger.info("rank %d waits for rank 0 at %s", rank, network.first_address)
    _run(rank, network, told, status, within_s=5 * JOIN_S)


def _run(
    rank: int,
    network: RankNetwork,
    told: Start | None = None,
    status: RankStatus | None = None,
    *,
    within_s: float,
) -> None:
    follower = Follower(rank, network, on_end=os._exit, told=told, status=status, within_s=within_s)
    _leave_signals_to_rank_0()
    logging.getLogger().addHandler(_Forwarding(follower))
    try:
        follower.serve()
    except Exception:
        logger.exception("this rank ends")
        follower.finish()
    os._exit(1)  # there may be threads in native code
