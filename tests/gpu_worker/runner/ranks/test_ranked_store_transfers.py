"""Blocks of several ranks: each has its share in a store of its own, and all of them or none."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from signalbox_contract.sections.store_moves import (
    Clear,
    ClearMark,
    Fetch,
    Find,
    MoveResult,
    Store,
    StoreMoves,
)
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.kv.store.late_store import LateStore
from signalbox_worker.kv.store_config import STORE_WRITE_BYTES_PER_S, DiskConfig, SharedConfig
from signalbox_worker.runner.native.executor import NativeExecutor
from signalbox_worker.runner.ranks.service.rank_messages import Start
from tests.gpu_worker.kv.shared import redis_servers
from tests.gpu_worker.kv.shared.redis_servers import needs_redis
from tests.gpu_worker.kv.store.stores import key_of, keys_of
from tests.gpu_worker.runner.ranks.thread_pools import ThreadRanks
from tests.gpu_worker.runner.ranks.thread_ranks import make_start, with_sizes
from tests.gpu_worker.tiny_models import make_llama
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system

SIZES = pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2), (2, 2)])


class Ranks(ThreadRanks):
    """Those of a worker with a store, and the stores of all of them."""

    def __init__(self, start: Start) -> None:
        super().__init__(start)
        self._num_moves = 0

    def renew_pools(self) -> None:
        super().renew_pools()
        self.moves = self.runner.transfers

    @property
    def tiers(self) -> list[LateStore[Any]]:
        return [share.transfers.store.store for share in self.shares]

    def await_open(self) -> None:
        for tier in self.tiers:
            assert tier.opened.wait(EVENT_S)

    def holds(self, *numbers: int) -> bool:
        """Says whether `fill` with these is what the pools have."""
        return all(
            self.block(rank, index)[:] == bytes([16 * number + rank]) * self.block(rank, 0).nbytes
            for rank in range(len(self.shares))
            for index, number in enumerate(numbers)
        )

    def num_before_found(self, *numbers: int) -> int:
        """Seeks the first of some blocks that are there."""
        self._num_moves += 1
        find = Find(self._num_moves, keys_of(*numbers), seeks=True)
        self.moves.begin(StoreMoves(finds=[find]))
        return self.end(find.move_id).num_blocks

    def begin(self, kind: type[Find | Fetch | Store], *numbers: int) -> int:
        self._num_moves += 1
        move_id, keys, blocks = self._num_moves, keys_of(*numbers), range(len(numbers))
        if kind is Find:
            self.moves.begin(StoreMoves(finds=[Find(move_id, keys)]))
        elif kind is Fetch:
            self.moves.begin(StoreMoves(fetches=[Fetch(move_id, keys, blocks)]))
        else:
            self.moves.begin(StoreMoves(stores=[Store(move_id, keys, blocks, "t")]))
        return move_id

    def end(self, move_id: int) -> MoveResult:
        ended: list[MoveResult] = []
        wait_until(lambda: ended.extend(self.moves.pop_ended()) or ended)
        (result,) = ended
        assert result.move_id == move_id
        return result

    def cleared(self, mark: ClearMark) -> MoveResult:
        """Clears the stores of all ranks, unless they have made the clear."""
        self._num_moves += 1
        self.moves.begin(StoreMoves(clears=[Clear(self._num_moves, None, mark)]))
        return self.end(self._num_moves)

    def done(self, kind: type[Find | Fetch | Store], *numbers: int) -> int:
        """Makes a move; returns how many blocks all ranks have found, fetched or kept."""
        result = self.end(self.begin(kind, *numbers))
        assert not result.failed
        return result.num_blocks


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    make_llama(path)
    return path


@contextmanager
def serving(
    model: Path, tmp_path: Path, tp: int = 2, pp: int = 1, *, url: str | None = None
) -> Iterator[Ranks]:
    start = with_sizes(make_start(model, ParallelConfig()), tp, pp)
    if url is None:
        start = replace(start, disk=DiskConfig(kv_disk=tmp_path / "kv"))
    else:
        start = replace(start, shared=SharedConfig(kv_store=url))
    ranks = Ranks(start)
    try:
        yield ranks
    finally:
        ranks.runner.close()


def found_on_each(ranks: Ranks, number: int) -> list[int]:
    return [tier.find(keys_of(number)) for tier in ranks.tiers]


@SIZES
def test_blocks_of_all_ranks_outlive_the_worker(
    model: Path, tmp_path: Path, tp: int, pp: int
) -> None:
    with serving(model, tmp_path, tp, pp) as ranks:
        ranks.await_open()
        ranks.fill(1, 2, 3)
        assert ranks.done(Store, 1, 2, 3) == 3
    assert len(list((tmp_path / "kv").glob("*.blocks"))) == tp * pp
    with serving(model, tmp_path, tp, pp) as ranks:
        ranks.await_open()
        assert ranks.done(Find, 1, 2, 3, 4) == 3
        assert not ranks.holds(1, 2, 3)
        assert ranks.done(Fetch, 1, 2, 3) == 3
        assert ranks.holds(1, 2, 3)


def test_each_rank_makes_a_clear_with_a_mark_once(model: Path, tmp_path: Path) -> None:
    mark = ClearMark(b"a scheduler".ljust(16), 3)
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.done(Store, 1) == 1
        assert not ranks.cleared(mark).failed
        assert found_on_each(ranks, 1) == [0, 0]
        assert ranks.done(Store, 1) == 1
        ranks.tiers[1].clear(None)  # one that its worker was not told of
        assert ranks.moves.clears == (mark,)
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.moves.clears == (mark,)
        for again in (mark, mark._replace(catches_up=True)):
            assert not ranks.cleared(again).failed
        assert found_on_each(ranks, 1) == [1, 0]
        assert not ranks.cleared(mark._replace(number=4, catches_up=True)).failed
        assert found_on_each(ranks, 1) == [0, 0]


def test_ranks_of_another_number_find_nothing(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.done(Store, 1) == 1
    with serving(model, tmp_path, 1, 2) as ranks:
        ranks.await_open()
        assert ranks.done(Find, 1) == 0


def test_blocks_of_ranks_of_which_one_computed_other_bits_are_not_found(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.done(Store, 1) == 1
    with monkeypatch.context() as patch:
        digest_of = NativeExecutor.arithmetic

        def digest_of_other_bits(self: NativeExecutor, *, max_num_tokens: int) -> str:
            digest = digest_of(self, max_num_tokens=max_num_tokens)
            return digest if self._draws else digest[::-1]

        patch.setattr(NativeExecutor, "arithmetic", digest_of_other_bits)
        with serving(model, tmp_path) as ranks:
            ranks.await_open()
            assert found_on_each(ranks, 1) == [0, 0]
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert found_on_each(ranks, 1) == [1, 1]


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_block_that_one_rank_lacks_is_removed_on_all(
    model: Path, tmp_path: Path, lacking: int
) -> None:
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.done(Store, 1, 2, 3) == 3
        ranks.tiers[lacking].remove(key_of(2))  # as it does to make room
        assert ranks.num_before_found(7, 2, 8, 1) == 3
        assert found_on_each(ranks, 2) == [lacking, 1 - lacking]
        assert ranks.done(Find, 1, 2, 3) == 1
        wait_until(lambda: found_on_each(ranks, 2) == [0, 0])
        assert found_on_each(ranks, 1) == found_on_each(ranks, 3) == [1, 1]
        ranks.fill(1, 2, 3)
        assert ranks.done(Store, 1, 2, 3) == 3
        assert ranks.done(Find, 1, 2, 3) == 3


def test_a_block_that_is_damaged_on_one_rank_is_fetched_on_none(
    model: Path, tmp_path: Path
) -> None:
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        ranks.fill(1, 2, 3)
        assert ranks.done(Store, 1, 2, 3) == 3
        store: Any = ranks.tiers[1]._store
        place = store._index.find(key_of(2)).slot * store._slots.slot_bytes
        with (tmp_path / "kv" / f"{store._files.name}.blocks").open("r+b") as file:
            file.seek(place)
            file.write(b"another")
        assert ranks.done(Find, 1, 2, 3) == 3
        assert ranks.done(Fetch, 1, 2, 3) == 1
        assert ranks.done(Find, 1, 2, 3) == 1
        wait_until(lambda: found_on_each(ranks, 2) == [0, 0])


def test_nothing_is_removed_for_a_rank_whose_store_opens_late(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.done(Store, 1, 2, 3) == 3
        late: Any = ranks.tiers[1]
        store, late._store = late._store, None
        assert ranks.done(Find, 1, 2, 3) == 0
        assert ranks.done(Store, 4) == 0  # behind what might have been removed
        late._store = store
        assert ranks.done(Find, 1, 2, 3) == 3


@pytest.fixture
def held_reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Keeps reads of stores from returning before the event."""
    released = threading.Event()
    read = LateStore.read

    def read_late(self: LateStore[Any], key: bytes, into: memoryview) -> bool:
        found = read(self, key, into)
        assert released.wait(EVENT_S)
        return found

    monkeypatch.setattr(LateStore, "read", read_late)
    yield released
    released.set()


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
def test_a_fetch_that_is_called_off_ends_at_once_and_writes_no_more(
    model: Path, tmp_path: Path, tp: int, pp: int, held_reads: threading.Event
) -> None:
    with serving(model, tmp_path, tp, pp) as ranks:
        ranks.await_open()
        ranks.fill(1, 2)
        assert ranks.done(Store, 1, 2) == 2
        move_id = ranks.begin(Fetch, 1, 2)
        ranks.moves.begin(StoreMoves(cancels=[move_id]))
        (result,) = ranks.moves.pop_ended()
        assert (result.move_id, result.num_blocks, result.failed) == (move_id, 0, "cancelled")
        assert ranks.done(Find, 1) == 1  # so each rank has read that the move was called off
        ranks.fill(5, 6)
        held_reads.set()
        readers = [share.transfers.store._readers for share in ranks.shares]
        wait_until(lambda: not any(one._starts for one in readers))
        assert ranks.holds(5, 6)
        assert ranks.done(Store, 5, 6) == 2


def test_moves_of_pools_that_are_gone_end_no_move_of_new_ones(
    model: Path, tmp_path: Path, held_reads: threading.Event
) -> None:
    with serving(model, tmp_path) as ranks:
        ranks.await_open()
        assert ranks.done(Store, 1, 2) == 2
        ranks.begin(Fetch, 1, 2)
        assert not ranks.moves.pop_ended()
        ranks.renew_pools()
        held_reads.set()
        ranks._num_moves = 1  # a lease begins to count anew
        assert ranks.done(Find, 1, 2, 3) == 2
        assert not ranks.moves.pop_ended()


def test_ranks_divide_the_writes_of_their_worker(model: Path, tmp_path: Path) -> None:
    with serving(model, tmp_path) as ranks:
        store = ranks.capacity.store
        assert store is not None
        assert store.read_bytes_per_s > 0
        assert store.max_write_bytes_per_s == STORE_WRITE_BYTES_PER_S // 2


@needs_redis
def test_ranks_keep_their_shares_on_one_server(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_servers.patient(monkeypatch)
    with redis_servers.redis() as server, serving(model, tmp_path, url=server.url) as ranks:
        ranks.await_open()
        ranks.fill(1, 2)
        assert ranks.done(Store, 1, 2) == 2
        keys = server.keys()
        assert len(keys) == 4
        for key in keys[:2]:  # of one rank
            server.call(b"SET", key, server.get(keys[3 - keys.index(key)]))
        ranks.fill(7, 8)
        assert ranks.done(Fetch, 1, 2) == 0
        server.call(b"FLUSHALL")
        ranks.fill(1, 2)
        assert ranks.done(Store, 1, 2) == 2
        ranks.fill(7, 8)
        assert ranks.done(Fetch, 1, 2) == 2
        assert ranks.holds(1, 2)
