"""The interface of KV transfers on the worker: blocks move between the CPU pool and elsewhere.

Elsewhere is a store, or the CPU pool of another worker. Transfers go on beside the steps. The base
classes here transfer nothing: a lease calls them without asking whether there is anything to do.
"""

from collections.abc import Iterator, Sequence

from signalbox_contract.errors import FailedPrecondition
from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import (
    BlockSource,
    ClearMark,
    MoveResult,
    StoreMoves,
)
from signalbox_rpc.metrics.sample import Sample
from signalbox_worker.kv.cache.pools import Pools
from signalbox_worker.kv.store.transfer import ExportedBlocks, Transfer


class BlockReader:
    """Reads blocks from other workers; the base class is that of a worker that reaches none."""

    reaches_peers = False

    def __len__(self) -> int:
        """Returns the number of transfers that are read."""
        return 0

    def begin(self, transfer: Transfer, source: BlockSource) -> None:
        """Reads a transfer's blocks from another worker; on any thread."""
        raise NotImplementedError

    def stop_ended(self) -> None:
        """Stops reading for transfers that have ended, such as cancelled ones; on any thread."""

    def close(self) -> None:
        """Stops all; on the event loop."""


class BlockTransfers:
    """The transfers of a runner; the base class has no pool, and transfers nothing.

    No method waits for a transfer. They are called on the execution thread; `redeem`, `clears`,
    `samples` and `close` may be called on any.
    """

    def __init__(self) -> None:
        self._pending: dict[int, Transfer] = {}
        """Transfers whose end `pop_ended` has not returned, by number, oldest first."""

    @property
    def store_capacity(self) -> StoreCapacity | None:
        """The store that the worker announces; None without one."""
        return None

    def bind(self, pools: Pools) -> None:
        """Transfers blocks of a new pool from now on; the transfers of the one before end."""

    def unbind(self) -> None:
        """Ends all transfers, and forgets them; the pool is not touched afterwards."""

    def connect(self, reader: BlockReader) -> None:
        """Exchanges blocks with other workers from now on."""

    def check(self, moves: StoreMoves) -> None:
        """Raises FailedPrecondition if the step names what this worker cannot transfer."""
        raise FailedPrecondition("this worker has no store for KV blocks, and the step uses it")

    def begin(self, moves: StoreMoves) -> None:
        """Begins a step's transfers, after those that it cancels have ended."""

    def pop_ended(self) -> Sequence[MoveResult]:
        """Returns the transfers that have ended since the last call, oldest first."""
        return self._pop_ended() if self._pending else ()

    def _pop_ended(self) -> Sequence[MoveResult]:
        raise NotImplementedError

    def redeem(self, ticket: bytes) -> ExportedBlocks | None:
        """Returns the blocks that a ticket is for, once; None if they are exported no more."""
        return None

    @property
    def clears(self) -> tuple[ClearMark, ...]:
        """Clears that the store has made; see `StoreCapacity`."""
        return ()

    def samples(self) -> Iterator[Sample]:
        """Yields what the store holds, and what is exchanged with other workers at the moment."""
        return iter(())

    def leave_peers(self) -> None:
        """Ends the transfers from and to other workers, as their lease has ended."""

    def close(self) -> None:
        """Ends what is under way, and closes the store."""
