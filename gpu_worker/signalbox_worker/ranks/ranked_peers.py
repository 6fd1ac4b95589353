"""Moves between the CPU pools of all ranks and other workers, which have as many ranks.

What one worker sends to another are whole blocks: the share of each rank, in the order of ranks.
Rank 0 takes part in the call for all, with one digest for all shares, and says alone whether a move
goes on. So a block has arrived when every rank has its share, and one that was read was lent on
every rank until the last share had been copied.
"""

from collections.abc import Callable, Sequence
from functools import partial

from signalbox_worker.kv_peers.peer_moves import LentBlocks, PeerMoves
from signalbox_worker.kv_store.move import Move
from signalbox_worker.ranks.rank_blocks import BlockCopies
from signalbox_worker.ranks.rank_pool import RankPool
from signalbox_worker.ranks.service.rank_messages import CloseBlocks, OpenBlocks

_UNANSWERED = "a rank does not copy its share of a block"


class RankedMove(Move):
    """A move of which each rank has a share.

    Args:
        number: that of the blocks that the ranks open for it.
        share_bytes: of a block on each rank.
    """

    def __init__(
        self,
        move_id: int,
        keys: Sequence[bytes],
        number: int,
        copies: BlockCopies,
        share_bytes: Sequence[int],
    ) -> None:
        super().__init__(move_id, keys)
        self._number, self._copies, self._share_bytes = number, copies, share_bytes

    def copy_in(self, index: int, data: memoryview) -> bool:
        if len(data) != sum(self._share_bytes):
            raise ValueError(f"a block has {sum(self._share_bytes)} bytes")
        shares, start = [], 0
        for num_bytes in self._share_bytes:
            shares.append(bytes(data[start : start + num_bytes]))
            start += num_bytes
        is_taken = self._copies.write(self._number, index, shares)
        if is_taken:
            self.kept(index, len(data))
        else:
            self.end(_UNANSWERED)
        return is_taken

    def copy_out(self, index: int, into: memoryview) -> bool:
        shares = self._copies.read(self._number, index)
        if shares is None:
            self.end(_UNANSWERED)
            return False
        into[:] = b"".join(shares)
        return not self.is_ended  # until then no block was anyone else's, on any rank

    def kept(self, index: int, num_bytes: int) -> None:
        """Counts the bytes of one rank, as the cost of a block does."""
        super().kept(index, self._share_bytes[0])


class RankedPeers(PeerMoves):
    """The moves of one lease of a worker of several ranks.

    Args:
        own: those of rank 0's share.
        share_bytes: of a block on each rank.
        run: calls on the thread that works with the pools of rank 0, in order; need not wait.
    """

    def __init__(
        self,
        own: PeerMoves,
        others: RankPool,
        *,
        share_bytes: Sequence[int],
        run: Callable[[Callable[[], None]], None],
    ) -> None:
        super().__init__(block_bytes=sum(share_bytes), block=_no_block)
        self._own, self._others, self._run = own, others, run
        self._share_bytes = tuple(share_bytes)
        self._numbers: dict[Move, int] = {}
        """Number of the blocks that ranks have opened, by move."""

    def take(self, ticket: bytes) -> LentBlocks | None:
        """Returns what `PeerMoves` does, once all ranks have done what comes before the lend."""
        lent = self._tickets.get(ticket)
        number = self._numbers.get(lent.move) if lent is not None else None
        if number is not None and not self._others.copies.are_open(number):
            return None
        return super().take(ticket)

    def close(self) -> None:
        moves = list(self._numbers)
        super().close()
        for move in moves:
            self._close_on_ranks(move)

    def _begin_copying(
        self, move_id: int, keys: Sequence[bytes], cpu_blocks: Sequence[int]
    ) -> Move:
        if not keys:
            raise ValueError("a move names at least one block")
        copies = self._others.copies
        number = copies.announce()
        move = RankedMove(move_id, keys, number, copies, self._share_bytes)
        self._begin(move)
        self._numbers[move] = number
        command = OpenBlocks(number, tuple(cpu_blocks))
        self._others.send(command)
        self._run(partial(copies.own.open, command, self._own))
        return move

    def _take_ended(self) -> list[Move]:
        """Closes the blocks of what has ended, before anything else may use them."""
        ended = super()._take_ended()
        for move in ended:
            self._close_on_ranks(move)
        return ended

    def _close_on_ranks(self, move: Move) -> None:
        number = self._numbers.pop(move)
        self._others.copies.forget(number)
        command = CloseBlocks(number)
        self._others.send(command)
        self._run(partial(self._others.copies.own.close_blocks, command))


def _no_block(index: int) -> memoryview:
    raise AssertionError("each rank copies its own")
