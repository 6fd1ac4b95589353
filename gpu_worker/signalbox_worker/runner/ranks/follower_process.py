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
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from signalbox_contract.model import Adapter, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_rpc.lifetime.stop_signals import STOP_SIGNALS, take_stop_signals
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.device.device_errors import DeviceLost, is_device_lost
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.ranks.rank_adapters import RankAdapters
from signalbox_worker.runner.ranks.rank_blocks import RankBlocks
from signalbox_worker.runner.ranks.rank_network import JOIN_S, RankNetwork
from signalbox_worker.runner.ranks.rank_shard import describe_rank, load_shard
from signalbox_worker.runner.ranks.rank_starts import versions
from signalbox_worker.runner.ranks.rank_status import RankStatus
from signalbox_worker.runner.ranks.service.rank_client import (
    REACH_S,
    FirstRank,
    NextRank,
    NoNextRank,
    reach,
)
from signalbox_worker.runner.ranks.service.rank_codec import encode_fields
from signalbox_worker.runner.ranks.service.rank_messages import (
    MAY_FAIL,
    AddAdapter,
    AskMoves,
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
    OpenStore,
    ProfileRun,
    RankAddress,
    RemoveAdapter,
    RemoveBlock,
    Report,
    Start,
    Sync,
)
from signalbox_worker.runner.ranks.service.rank_servicer import RankLost, RankServer, RankServicer
from signalbox_worker.runner.ranks.stage import FailedBefore, NoStatesBefore, Stage, StatesBefore

logger = logging.getLogger("signalbox_worker.runner.ranks.follower_process")

_LEAVE_S = 0.5
_VERDICT_S = 4.0
"""Seconds for rank 0, which knows more, to end a rank that has lost another one."""

Calls = Mapping[type[Any], Callable[[Any], Report | None]]
"""Functions that make the call of each kind of command; the report that one returns is sent."""


class Follower:
    """Executes one command after the other."""

    def __init__(
        self,
        rank: int,
        network: RankNetwork,
        *,
        on_end: Callable[[int], None],
        told: bytes = b"",
        on_loaded: Callable[[Stage, int], None] = lambda _stage, _number: None,
        within_s: float = REACH_S,
    ) -> None:
        """Joins rank 0. Raises TimeoutError if that cannot be reached.

        Args:
            on_end: called on any thread with the status to exit with.
            told: what the command line of this rank says; empty obeys rank 0 alone.
            on_loaded: takes the stage that this rank computes, and its number.
        """
        self._rank = rank
        self._on_end, self._on_loaded = on_end, on_loaded
        self._network, tls = network, network.tls
        self._servicer = RankServicer(rank, self._on_link_lost, tls)
        self._server = RankServer(self._servicer, network.address, num_streams=1, tls=tls)
        first = RankAddress(network.first_address, network.first_name)
        self._first = FirstRank(first, tls=tls, within_s=within_s)
        self._first.report(Hello(rank, versions(), network.address, os.getpid(), told))
        self._commands: SimpleQueue[tuple[Command, int] | None] = SimpleQueue()
        """Each with the time of the monotonic clock at which it came, in nanoseconds."""
        self._num_commands = self._arrived_ns = 0
        self._calls: Calls = {
            Meet: partial(reach, rank=rank, tls=tls),
            Start: self._start,
        }
        self._beside: Calls = {}
        """Calls that begin at once, on the thread that reads, and are not counted."""
        self._shards = ExitStack()
        """Closes the shard, once there is one."""
        self._blocks = RankBlocks(self._first.report)
        self._reader = threading.Thread(target=self._read, name="rank 0", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        status = 0
        try:
            for command in self._first.commands():
                if (call := self._beside.get(type(command))) is not None:
                    call(command)
                else:
                    self._commands.put((command, time.monotonic_ns()))
        except RankLost as error:
            logger.error("%s", error)
            time.sleep(_LEAVE_S)  # if rank 0 has ended, what watches it ends this process
            status = 1
        self._shards.close()
        self._commands.put(None)
        self._on_end(status)

    def report(self, report: Report) -> None:
        self._first.report(report, command=self._num_commands)

    def serve(self) -> None:
        """Executes commands until rank 0 ends; raises errors after which the rank cannot go on."""
        try:
            while (read := self._commands.get()) is not None:
                command, self._arrived_ns = read
                self._num_commands += not isinstance(command, ForgetAdapter)
                self._obey(command)
        except DeviceLost:  # if that is because of another rank, rank 0 ends this one
            self._reader.join(_VERDICT_S)
            raise
        self._reader.join()  # which has called `on_end`

    def _obey(self, command: Command) -> None:
        """Makes the call of a command. Reports the failure of one that may fail, raises others."""
        try:
            report = self._calls[type(command)](command)
        except FailedBefore:
            return  # the rank that has failed says so
        except Exception as error:
            if not isinstance(command, MAY_FAIL) or is_device_lost(error):
                raise
            report = _failure(error)
        if report is not None:
            self.report(report)

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
        self._blocks.close()
        self._first.close()
        self._server.close()

    def _start(self, start: Start) -> Report:
        """Loads this rank's shard. Rank 0 fails at the same, most often, and says it."""
        try:
            return self._load(start)
        except Exception as error:
            return _failure(error)

    def _load(self, start: Start) -> Report:
        next_rank = self._connect(start)
        shard = load_shard(start, self._first)
        self._shards.callback(shard.close)
        is_first = start.parallel.stage == 0
        before = NoStatesBefore() if is_first else StatesBefore(self._servicer.incoming)
        stage = Stage(shard, before, next_rank)
        adapters = RankAdapters(shard.open_adapter, self._first.report)
        self._shards.callback(adapters.close)
        self._beside = {OpenAdapter: adapters.open, CopyBlock: self._blocks.copy}
        self._calls = {
            Batch: partial(self._execute, stage),
            **_calls_of(shard, start),
            **_adapter_calls(shard, adapters),
            **_block_calls(shard, self._blocks),
        }
        self._on_loaded(stage, start.parallel.stage)
        return Loaded.of(shard.model)

    def _connect(self, start: Start) -> NextRank | NoNextRank:
        if (below := start.next_rank) is None:
            return NoNextRank()
        on_lost, tls = partial(self._on_link_lost, below), self._network.tls
        return NextRank(start.addresses[below], rank=self._rank, on_lost=on_lost, tls=tls)

    def _execute(self, stage: Stage, batch: Batch) -> None:
        stage.execute(batch, command=self._num_commands, arrived_ns=self._arrived_ns)


def _calls_of(shard: LocalRunner, start: Start) -> Calls:
    description, transfers = describe_rank(start, shard.executor.layers), shard.transfers

    def profile(_: ProfileRun) -> WorkerCapacity:
        return replace(shard.measure(), ranks=(description,))

    def init_cache_engine(sizes: InitCacheEngine) -> CacheReady:
        shard.init_cache_engine(**sizes._asdict())
        return CacheReady(shard.executor.num_graphs)

    def apply(sections: Step) -> None:
        if sections.store_moves is None:
            shard.apply(sections)
        else:
            transfers.begin(sections.store_moves)

    return {
        ProfileRun: profile,
        OpenStore: lambda of: shard.open_store(of.arithmetic),
        InitCacheEngine: init_cache_engine,
        Step: apply,
        Settlement: shard.settle,
        Sync: lambda _: InStep(shard.executor.num_collectives),
        AskMoves: lambda _: EndedMoves(tuple(transfers.pop_ended()), transfers.store.is_open),
        RemoveBlock: lambda block: transfers.store.remove(block.key),
    }


def _adapter_calls(shard: LocalRunner, adapters: RankAdapters) -> Calls:
    return {
        AddAdapter: lambda added: shard.add_adapter(adapters.take(added.number)),
        RemoveAdapter: lambda one: shard.remove_adapter(Adapter(**one._asdict())),
        ForgetAdapter: lambda one: adapters.forget(one.number),
    }


def _block_calls(shard: LocalRunner, blocks: RankBlocks) -> Calls:
    return {
        OpenBlocks: lambda opened: blocks.open(opened, shard.transfers),
        CloseBlocks: blocks.close_blocks,
    }


def _failure(error: Exception) -> Failure:
    if not isinstance(error, MemoryError | ValueError | OSError):
        logger.error("a command failed", exc_info=error)
    return Failure.of(error)


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
    within_s = 5 * JOIN_S
    _run(rank, network, told=encode_fields(told), on_loaded=status.set_ready, within_s=within_s)


def _run(rank: int, network: RankNetwork, **options: Any) -> None:
    """Args: options: those of `Follower`."""
    follower = Follower(rank, network, on_end=os._exit, **options)
    _leave_signals_to_rank_0()
    logging.getLogger().addHandler(_Forwarding(follower))
    try:
        follower.serve()
    except Exception:
        logger.exception("this rank ends")
        follower.finish()
    os._exit(1)  # there may be threads in native code
