"""Blocks that a worker of several ranks exports to another: the share of each rank, or nothing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.sections.store_moves import (
    BlockSource,
    Export,
    Fetch,
    MoveResult,
    StoreMoves,
)
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store.pool_transfers import CANCELLED
from signalbox_worker.kv.store.transfer import ExportedBlocks, Transfer
from signalbox_worker.runner.ranks import rank_blocks
from signalbox_worker.runner.ranks.launchers import LocalRanks
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from tests.gpu_worker.kv.peers.test_exports import Reader
from tests.gpu_worker.kv.store.stores import keys_of
from tests.gpu_worker.runner.ranks.thread_pools import ThreadRanks
from tests.gpu_worker.runner.ranks.thread_ranks import ThreadRank, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_llama
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system

TICKET = b"t" * 16
SIZES = pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])


class Ranks(ThreadRanks):
    """Those of a worker that exports to others, and reads of them."""

    def renew_pools(self) -> None:
        super().renew_pools()
        self.peers = self.runner.transfers
        self.reader = Reader()
        self.peers.connect(self.reader)
        self.num_moves = 0

    def held(self, index: int) -> list[set[int]]:
        """Returns what the block of each rank holds."""
        return [set(self.block(rank, index)) for rank in range(len(self.shares))]

    def export(self, *numbers: int) -> ExportedBlocks:
        """Exports the first blocks; returns what the ticket is for when all ranks know it."""
        self.num_moves += 1
        blocks = range(len(numbers))
        lasts_ns = 600_000_000_000
        export = Export(self.num_moves, keys_of(*numbers), blocks, TICKET, "", lasts_ns)
        self.peers.begin(StoreMoves(exports=[export]))
        exported: list[ExportedBlocks] = []
        wait_until(lambda: (got := self.peers.redeem(TICKET)) and exported.append(got) is None)
        return exported[0]

    def receive(self, *numbers: int, first: int = 0) -> Transfer:
        """Begins to read from another worker into the pool's blocks from the `first` on."""
        self.num_moves += 1
        blocks = range(first, first + len(numbers))
        fetch = Fetch(self.num_moves, keys_of(*numbers), blocks, BlockSource("host:1", "", TICKET))
        self.peers.begin(StoreMoves(fetches=[fetch]))
        return self.reader.begun[-1]

    def end(self) -> MoveResult:
        (result,) = self.peers.pop_ended()
        return result

    def are_closed(self) -> bool:
        copies = self.runner._others.copies
        blocks = [copies.own, *(one._follower._blocks for one in self._started)]
        return not copies._opening and not copies._copying and not any(one._open for one in blocks)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_llama(path)
    return path


@contextmanager
def serving(model: Path, tp: int = 2, pp: int = 1, **more: Any) -> Iterator[Ranks]:
    start = with_sizes(make_start(model, ParallelConfig(), **more), tp, pp)
    ranks = Ranks(start)
    try:
        yield ranks
        wait_until(ranks.are_closed)
    finally:
        ranks.runner.close()


def pattern(ranks: Ranks, number: int) -> bytes:
    sizes = ranks.runner._share_bytes
    return b"".join(bytes([16 * number + rank]) * size for rank, size in enumerate(sizes))


@SIZES
def test_a_block_is_read_as_the_shares_of_all_ranks_in_their_order(
    model: Path, tp: int, pp: int
) -> None:
    with serving(model, tp, pp) as ranks:
        assert len(ranks.runner._share_bytes) == tp * pp
        ranks.fill(1, 2)
        exported = ranks.export(1, 2)
        assert exported.copy_out(0) == pattern(ranks, 1)
        assert exported.copy_out(1) == pattern(ranks, 2)
        for index in range(2):
            exported.transfer.kept(index, exported.transfer.block_bytes)
        result = ranks.end()
        assert (result.num_blocks, result.failed) == (2, "")
        assert result.num_bytes == 2 * ranks.capacity.block_bytes


@SIZES
def test_a_block_has_arrived_when_each_rank_has_its_share(model: Path, tp: int, pp: int) -> None:
    with serving(model, tp, pp) as ranks:
        ranks.fill(5, 5, 5)
        move = ranks.receive(1, 2)
        for index, number in enumerate((1, 2)):
            assert not ranks.peers.pop_ended()
            assert move.copy_in(index, memoryview(pattern(ranks, number)))
        result = ranks.end()
        assert (result.num_blocks, result.failed) == (2, "")
        for index, number in enumerate((1, 2, 5)):
            assert ranks.held(index) == [{16 * number + rank} for rank in range(tp * pp)]


@SIZES
def test_a_move_that_is_called_off_is_over_on_all_ranks(model: Path, tp: int, pp: int) -> None:
    with serving(model, tp, pp) as ranks:
        ranks.fill(1, 2)
        exported, move = ranks.export(1), ranks.receive(3, first=1)
        ranks.peers.begin(StoreMoves(cancels=[1, 2]))
        assert [one.failed for one in ranks.peers.pop_ended()] == [CANCELLED] * 2
        wait_until(ranks.are_closed)
        assert exported.copy_out(0) is None
        assert not move.copy_in(0, memoryview(pattern(ranks, 3)))
        assert ranks.held(1) == [{32 + rank} for rank in range(tp * pp)]


def test_a_block_of_another_size_is_refused(model: Path) -> None:
    with serving(model) as ranks:
        move = ranks.receive(1)
        with pytest.raises(ValueError, match="bytes"):
            move.copy_in(0, memoryview(pattern(ranks, 1))[1:])
        move.end("of another size")
        assert ranks.end().num_blocks == 0


def test_what_is_read_counts_only_if_it_was_exported_to_the_end(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model) as ranks:
        ranks.fill(1)
        exported = ranks.export(1)
        copied = rank_blocks._copied

        def end_meanwhile(*of: Any) -> bytes | None:
            found = copied(*of)
            exported.transfer.end("its time is over")
            return found

        monkeypatch.setattr(rank_blocks, "_copied", end_meanwhile)
        assert exported.copy_out(0) is None
        assert ranks.end().num_blocks == 0


def test_moves_of_pools_that_are_gone_touch_no_new_ones(model: Path) -> None:
    with serving(model) as ranks:
        exported, move = ranks.export(1), ranks.receive(2)
        ranks.renew_pools()
        ranks.fill(7)
        assert exported.copy_out(0) is None
        assert not move.copy_in(0, memoryview(pattern(ranks, 2)))
        assert ranks.held(0) == [{112}, {113}]
        assert not ranks.peers.pop_ended()


def test_a_rank_that_does_not_copy_ends_the_move(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_blocks, "ANSWER_S", 0.05)
    with serving(model) as ranks:
        move = ranks.receive(1)
        blocks = ranks._started[0]._follower._blocks
        monkeypatch.setattr(blocks, "_report", lambda report: None)
        assert not move.copy_in(0, memoryview(pattern(ranks, 1)))
        assert "does not copy" in ranks.end().failed


def test_ranks_that_are_lost_keep_no_move_waiting(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_blocks, "ANSWER_S", EVENT_S)
    ranks = Ranks(with_sizes(make_start(model, ParallelConfig()), 2, 1))
    try:
        exported = ranks.export(1)
        ranks.runner._others.lose("a rank was killed")
        began = time.monotonic()
        assert exported.copy_out(0) is None
        assert time.monotonic() - began < EVENT_S / 2
    finally:
        ranks.runner.close()


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_workers_have_one_format_if_each_rank_has_the_same_share(model: Path, backend: str) -> None:
    formats = []
    for tp, pp in [(2, 1), (2, 1), (1, 2), (2, 2), (1, 2)]:
        with serving(model, tp, pp, cpu_backend=backend) as ranks:
            formats.append(ranks.capacity.block_format)
    assert all(formats)
    assert formats[0] == formats[1]
    assert formats[2] == formats[4]
    assert len(set(formats)) == 3


def test_ranks_without_a_cpu_pool_have_no_format(model: Path) -> None:
    start = with_sizes(make_start(model, ParallelConfig()), 2, 1)
    start = replace(start, cache=start.cache.model_copy(update={"swap_space": 0.0}))
    runner = RankedRunner(start, on_lost=lambda _: None, ranks=LocalRanks(ThreadRank))
    try:
        assert runner.profile().block_format == ""
    finally:
        runner.close()
