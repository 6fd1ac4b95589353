"""One transfer of blocks between a CPU pool and elsewhere: what has arrived, if it has ended."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from signalbox_contract.sections.store_moves import MAX_FAULT_CHARS, MoveResult


class Transfer:
    """A transfer under way; threads report the end of each of its blocks, in any order.

    A block that is missing ends the transfer at that block: the ones after it are of no use.

    Args:
        blocks: blocks of the CPU pool, one for each key, or none if nothing is copied.
        await_copies: waits until earlier copies of these blocks have ended.
        with_peer: whether another worker takes part, and not the store.
    """

    def __init__(
        self,
        move_id: int,
        keys: Sequence[bytes],
        blocks: Sequence[memoryview] = (),
        await_copies: Callable[[], None] | None = None,
        *,
        with_peer: bool = False,
    ) -> None:
        self.move_id = move_id
        self.keys = tuple(keys)
        self.with_peer = with_peer
        self.block_bytes = len(blocks[0]) if blocks else 0
        self._blocks = list(blocks)
        self._await_copies = await_copies
        self._lock = threading.Lock()
        self._is_done = [False] * len(self.keys)
        self._num_wanted = len(self.keys)
        self._num_done = 0  # blocks before the first that is not done
        self._num_bytes = 0
        self._start_ns = self._end_ns = 0
        self._failed = ""
        self._is_ended = False

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    def begin(self, index: int) -> bool:
        """Returns whether the block at `index` is still wanted; the first call starts the clock."""
        with self._lock:
            if self._is_ended:
                return False
            self._start_ns = self._start_ns or time.monotonic_ns()
            return index < self._num_wanted

    def restart(self) -> bool:
        """Starts the clock anew if the transfer goes on; returns whether it does."""
        with self._lock:
            if not self._is_ended:
                self._start_ns = time.monotonic_ns()
            return not self._is_ended

    def copy_in(self, index: int, data: memoryview) -> bool:
        """Copies what was read into the pool; returns False if the transfer has ended."""
        self._wait()
        with self._lock:
            if self._is_ended:
                return False
            self._blocks[index][:] = data
            self._count(index, len(data))
            return True

    def copy_out(self, index: int, into: memoryview) -> bool:
        """Copies what is to be written out of the pool; returns False if the transfer has ended."""
        self._wait()
        with self._lock:
            if not self._is_ended:
                into[:] = self._blocks[index]
            return not self._is_ended

    def kept(self, index: int, num_bytes: int) -> None:
        """Counts a block that was written to the store, or read by another worker."""
        with self._lock:
            if not self._is_ended:
                self._count(index, num_bytes)

    def miss(self, index: int) -> None:
        """Ends the transfer at a block that is not there, or was not kept."""
        with self._lock:
            self._num_wanted = min(self._num_wanted, index)
            self._end_if_done()

    def found(self, num_blocks: int) -> None:
        with self._lock:
            if not self._is_ended:
                self._num_done = num_blocks
                self._end()

    def end(self, failed: str = "") -> None:
        """Ends the transfer now if it has not; its blocks are not touched afterwards."""
        with self._lock:
            if not self._is_ended:
                text = failed.partition("\n")[0].encode(errors="backslashreplace").decode()
                self._failed = text[:MAX_FAULT_CHARS]
                self._end()

    def result(self) -> MoveResult:
        """Returns what an ended transfer has done."""
        with self._lock:  # it may be about to end
            took_ns = self._end_ns - self._start_ns if self._start_ns else 0
            return MoveResult(self.move_id, self._num_done, self._num_bytes, took_ns, self._failed)

    def _wait(self) -> None:
        if (wait := self._await_copies) is not None:  # a cancel may take it away meanwhile
            wait()

    def _count(self, index: int, num_bytes: int) -> None:
        self._is_done[index] = True
        self._num_bytes += num_bytes
        while self._num_done < len(self.keys) and self._is_done[self._num_done]:
            self._num_done += 1
        self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._is_ended and self._num_done >= self._num_wanted:
            self._end()

    def _end(self) -> None:
        self._is_ended = True
        self._end_ns = time.monotonic_ns()
        self._blocks.clear()  # a thread that hangs holds the transfer, and must not hold the pool
        self._await_copies = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ExportedBlocks:
    """Blocks that a ticket is for."""

    transfer: Transfer
    ticket: bytes
    reader: str
    """Name in the certificate of the worker that may read them; empty if callers show none."""
    expires_at: float
    """Seconds on the monotonic clock."""

    def copy_out(self, index: int) -> bytearray | None:
        """Returns the bytes of a block; None if it is exported no more. May wait for copies."""
        block = bytearray(self.transfer.block_bytes)
        if not self.transfer.begin(index):
            return None
        return block if self.transfer.copy_out(index, memoryview(block)) else None
