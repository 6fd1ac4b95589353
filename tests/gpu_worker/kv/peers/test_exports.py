"""Exports end, once: read, cancelled, expired or with the pool; nothing is read afterwards."""

import numpy as np
import pytest

from signalbox_contract.sections.store_moves import (
    BlockSource,
    Export,
    Fetch,
    MoveResult,
    StoreMoves,
)
from signalbox_worker.kv.cache.block_pools import BlockPools
from signalbox_worker.kv.store.block_transfers import BlockReader
from signalbox_worker.kv.store.pool_transfers import CANCELLED, EXPIRED, PoolTransfers
from signalbox_worker.kv.store.store_threads import no_store
from signalbox_worker.kv.store.transfer import ExportedBlocks, Transfer

BLOCK_BYTES = 64
TICKET, OTHER = b"t" * 16, b"o" * 16
KEYS = [bytes([number]) * 16 for number in range(3)]


class Reader(BlockReader):
    """Reads nothing, and keeps the transfers that it is to read."""

    reaches_peers = True

    def __init__(self) -> None:
        self.begun: list[Transfer] = []
        self.reading: list[Transfer] = []

    def begin(self, transfer: Transfer, source: BlockSource) -> None:
        self.begun.append(transfer)
        self.reading.append(transfer)

    def stop_ended(self) -> None:
        self.reading = [one for one in self.reading if not one.is_ended]


class Peers:
    """Transfers of a pool of four blocks, under a clock that stands still."""

    def __init__(self) -> None:
        self.now = 100.0
        pools = BlockPools(num_gpu_blocks=1, num_cpu_blocks=4, block_bytes=BLOCK_BYTES)
        self.pool = pools.cpu_pool
        self.pool[:] = np.arange(4 * BLOCK_BYTES, dtype=np.uint8).reshape(4, BLOCK_BYTES)
        self.reader = Reader()
        self.transfers = PoolTransfers(no_store(), clock=lambda: self.now)
        self.transfers.bind(pools)
        self.transfers.connect(self.reader)

    def export(self, move_id: int = 1, *, ticket: bytes = TICKET, lasts_s: float = 2) -> None:
        export = Export(move_id, KEYS, [3, 0, 1], ticket, "", int(lasts_s * 1e9))
        self.transfers.begin(StoreMoves(exports=[export]))

    def receive(self, move_id: int, keys: list[bytes], cpu_blocks: list[int]) -> Transfer:
        fetch = Fetch(move_id, keys, cpu_blocks, BlockSource("host:1", "", TICKET))
        self.transfers.begin(StoreMoves(fetches=[fetch]))
        return self.reader.begun[-1]

    def taken(self) -> ExportedBlocks:
        exported = self.transfers.redeem(TICKET)
        assert exported is not None
        return exported

    def ended(self) -> MoveResult:
        (result,) = self.transfers.pop_ended()
        assert not self.transfers.pop_ended()
        return result


@pytest.fixture
def peers() -> Peers:
    return Peers()


def test_exported_blocks_are_read_once_and_end_with_the_last(peers: Peers) -> None:
    peers.export()
    exported = peers.taken()
    assert peers.transfers.redeem(TICKET) is None, "a ticket is for one reading"
    for index, block in enumerate([3, 0, 1]):
        assert not peers.transfers.pop_ended()
        assert exported.copy_out(index) == peers.pool[block].tobytes()
        exported.transfer.kept(index, BLOCK_BYTES)
    result = peers.ended()
    assert (result.move_id, result.num_blocks, result.num_bytes) == (1, 3, 3 * BLOCK_BYTES)
    assert result.failed == ""
    assert exported.copy_out(0) is None, "what is not exported any more may hold something else"


def test_a_ticket_that_was_never_told_is_for_nothing(peers: Peers) -> None:
    peers.export()
    assert peers.transfers.redeem(OTHER) is None
    assert peers.transfers.redeem(TICKET) is not None


@pytest.mark.parametrize("is_shown", [False, True])
def test_a_export_expires_by_the_owners_clock(peers: Peers, is_shown: bool) -> None:
    peers.export(lasts_s=2)
    peers.now += 1.9
    exported = peers.taken() if is_shown else None
    peers.now += 0.2
    assert peers.ended().failed == EXPIRED
    if exported is not None:
        assert exported.copy_out(0) is None
    assert peers.transfers.redeem(TICKET) is None


def test_a_ticket_that_is_shown_too_late_ends_its_export(peers: Peers) -> None:
    peers.export(lasts_s=2)
    peers.now += 2
    assert peers.transfers.redeem(TICKET) is None
    assert peers.ended().failed == EXPIRED


def test_a_export_that_is_called_off_is_not_read_on(peers: Peers) -> None:
    peers.export()
    exported = peers.taken()
    assert exported.copy_out(0) is not None
    exported.transfer.kept(0, BLOCK_BYTES)
    peers.transfers.begin(StoreMoves(cancels=[1, 77]))
    assert exported.copy_out(1) is None
    result = peers.ended()
    assert (result.num_blocks, result.failed) == (1, CANCELLED)


def test_nothing_is_read_or_written_once_the_pool_is_given_up(peers: Peers) -> None:
    peers.export()
    exported = peers.taken()
    peers.export(2, ticket=OTHER)
    arriving = peers.receive(3, KEYS[:1], [2])
    peers.transfers.unbind()
    before = peers.pool.copy()
    assert exported.copy_out(0) is None
    assert peers.transfers.redeem(OTHER) is None
    arriving.copy_in(0, memoryview(bytes(BLOCK_BYTES)))
    assert (peers.pool == before).all()
    assert not peers.transfers.pop_ended()


def test_a_move_names_blocks_and_has_a_number_of_its_own(peers: Peers) -> None:
    peers.export()
    with pytest.raises(ValueError, match="under way"):
        peers.receive(1, KEYS[:1], [2])
    with pytest.raises(ValueError, match="at least one"):
        peers.receive(2, [], [])


def test_nothing_is_read_for_a_pool_that_is_gone(peers: Peers) -> None:
    transfer = peers.receive(1, KEYS[:1], [2])
    peers.transfers.unbind()
    assert transfer.is_ended
    assert peers.reader.reading == []
    assert not peers.transfers.pop_ended()
