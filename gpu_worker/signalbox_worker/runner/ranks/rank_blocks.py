"""Open blocks: blocks of the CPU pools of all ranks that are copied beside the commands.

Each rank copies its share, on a thread of its own. Blocks are opened and closed by commands that
have their place among the others, so a share is never copied before what an earlier command does to
it, nor after a later one. Bytes go over the stream of the commands, a block at a time.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial

from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.kv.store.transfer import Transfer
from signalbox_worker.runner.ranks.service.rank_messages import (
    BlockCopied,
    BlocksOpened,
    CloseBlocks,
    CopyBlock,
    OpenBlocks,
)

ANSWER_S = 10.0
"""Longest wait for the ranks to open blocks, behind what they compute, or to copy one."""


class RankBlocks:
    """The open blocks of one rank.

    Args:
        report: tells rank 0; called on any thread.
    """

    def __init__(self, report: Callable[[BlocksOpened | BlockCopied], None]) -> None:
        self._report = report
        self._open: dict[int, Transfer] = {}
        self._copying = ThreadPoolExecutor(1, "copies blocks")

    def open(self, command: OpenBlocks, transfers: PoolTransfers) -> None:
        """Opens blocks of the pool; on the thread that works with it, as `close_blocks`."""
        keys = [b""] * len(command.cpu_blocks)
        self._open[command.number] = transfers.open(command.number, keys, command.cpu_blocks)
        self._report(BlocksOpened(command.number))

    def close_blocks(self, command: CloseBlocks) -> None:
        """Closes blocks, once no thread copies them."""
        self._open.pop(command.number).end()

    def copy(self, command: CopyBlock) -> None:
        """Begins to copy a block, and reports when that is done; on any thread."""
        self._copying.submit(self._copy, command)

    def close(self) -> None:
        self._copying.shutdown(wait=False, cancel_futures=True)

    def _copy(self, command: CopyBlock) -> None:
        transfer, data = self._open.get(command.number), None
        if transfer is not None and not transfer.is_ended:
            data = _copied(command, transfer)
        self._report(BlockCopied(command.number, command.place, data))


def _copied(command: CopyBlock, transfer: Transfer) -> bytes | None:
    """Copies a block; returns what `BlockCopied` says of it."""
    if command.data is None:
        block = bytearray(transfer.block_bytes)
        return bytes(block) if transfer.copy_out(command.place, memoryview(block)) else None
    return b"" if transfer.copy_in(command.place, memoryview(command.data)) else None


class BlockCopies:
    """The copies that rank 0 asks all ranks for. Safe from any thread, and called off once."""

    def __init__(self, num_ranks: int, tell: Callable[[int, CopyBlock], None]) -> None:
        """Args: tell: sends another rank a command beside those that are counted."""
        self._num_ranks, self._tell = num_ranks, tell
        self.own = RankBlocks(partial(self.hear, 0))
        """The open blocks of rank 0."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._opening: dict[int, set[int]] = {}
        """Ranks that have not opened blocks yet, by the number of these."""
        self._is_open: dict[int, threading.Event] = {}
        self._copying: dict[tuple[int, int, int], Future[bytes | None]] = {}
        """Copies under way, by rank, number and place."""
        self._is_off = False

    def announce(self) -> int:
        """Returns the number of blocks that are about to be opened."""
        number = next(self._numbers)
        with self._lock:
            self._opening[number] = set(range(self._num_ranks))
            self._is_open[number] = threading.Event()
        return number

    def forget(self, number: int) -> None:
        with self._lock:
            self._opening.pop(number, None)
            self._is_open.pop(number).set()

    def are_open(self, number: int) -> bool:
        """Returns whether all ranks have opened the blocks."""
        return self._opening.get(number) == set()

    def read(self, number: int, place: int) -> list[bytes] | None:
        """Returns the shares of a block; None if a rank has none, or does not answer."""
        return self._copy([CopyBlock(number, place)] * self._num_ranks)

    def write(self, number: int, place: int, shares: Sequence[bytes]) -> bool:
        """Gives each rank its share of a block; returns whether all have taken it."""
        if (opening := self._is_open.get(number)) is None or not opening.wait(ANSWER_S):
            return False
        return self._copy([CopyBlock(number, place, share) for share in shares]) is not None

    def hear(self, rank: int, report: BlocksOpened | BlockCopied) -> None:
        """Takes the report of a rank; one that nothing waits for any more is dropped."""
        if isinstance(report, BlockCopied):
            with self._lock:
                copying = self._copying.pop((rank, report.number, report.place), None)
            if copying is not None:
                copying.set_result(report.data)
            return
        with self._lock:
            if (opening := self._opening.get(report.number)) is not None:
                opening.discard(rank)
                if not opening:
                    self._is_open[report.number].set()

    def call_off(self) -> None:
        """Says that the ranks are gone."""
        with self._lock:
            self._is_off = True
            for opening in self._is_open.values():
                opening.set()
            waiting = list(self._copying.values())
            self._copying.clear()
        for copying in waiting:
            copying.set_result(None)
        self.own.close()

    def _copy(self, commands: Sequence[CopyBlock]) -> list[bytes] | None:
        awaited: dict[tuple[int, int, int], Future[bytes | None]] = {
            (rank, one.number, one.place): Future() for rank, one in enumerate(commands)
        }
        with self._lock:
            if self._is_off:
                return None
            self._copying |= awaited
            self.own.copy(commands[0])  # it is not closed yet
        for rank, command in enumerate(commands[1:], start=1):
            self._tell(rank, command)
        try:
            copied = [one.result(ANSWER_S) for one in awaited.values()]
        except FutureTimeout:
            return None
        finally:
            for key in awaited:
                self._copying.pop(key, None)
        shares = [share for share in copied if share is not None]
        return shares if len(shares) == len(commands) else None
