"""Blocks that were written are found after a restart; what is not right is not there."""

import logging
import os
import shutil
import sqlite3
import stat
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.disk.clear_marks import ClearMarks
from signalbox_worker.kv.disk.disk_index import DiskIndex
from signalbox_worker.kv.disk.disk_space import SECONDS_PER_DAY, WriteLimit
from signalbox_worker.kv.disk.store_folder import StoreFolder
from signalbox_worker.kv.disk.stored_models import clear, stored_models
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store.store_threads import StoreThreads
from signalbox_worker.kv.store.transfer import Transfer
from tests.gpu_worker.kv.disk.disks import (
    BLOCK_BYTES,
    IDENTITY,
    FailingCalls,
    data_of,
    files_of,
    held,
    make_store,
    read,
    write,
)
from tests.gpu_worker.kv.store.stores import key_of, keys_of


def test_blocks_are_found_and_read_after_a_restart(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert all(write(store, *range(10)))
    store.close()
    again = make_store(tmp_path)
    assert again.find(keys_of(*range(12))) == 10
    assert held(again, range(12)) == set(range(10))
    assert again.usage().num_blocks == 10
    again.close()


def test_a_find_counts_leading_keys_over_many_statements(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, *range(600))
    assert store.find(keys_of(*range(600))) == 600
    assert store.find(keys_of(*range(300), 999, *range(300, 600))) == 300
    assert store.find(keys_of(999, 0)) == 0
    store.close()


def test_a_block_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    limit = WriteLimit(bytes_per_day=BLOCK_BYTES)
    store = make_store(tmp_path, limit=limit)
    assert write(store, 1, 1) == [True, True]
    assert limit.written_today == BLOCK_BYTES
    assert store.usage().num_blocks == 1
    store.close()


def test_the_block_used_longest_ago_is_evicted(tmp_path: Path) -> None:
    store = make_store(tmp_path, num_blocks=8)
    write(store, *range(8))
    assert read(store, 0) is not None
    assert store.find(keys_of(1)) == 1
    write(store, 8, 9)
    assert held(store, range(10)) == {0, 1, 4, 5, 6, 7, 8, 9}
    assert store.usage().num_evicted == 2
    store.close()


def test_of_one_prompt_the_last_blocks_are_evicted_first(tmp_path: Path) -> None:
    store = make_store(tmp_path, num_blocks=8)
    write(store, *range(8))
    assert store.find(keys_of(*range(8))) == 8
    write(store, 8, 9)
    assert store.find(keys_of(*range(8))) == 6
    store.close()


def test_of_a_prompt_that_was_never_looked_up_the_last_blocks_are_evicted_first(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path, num_blocks=8)
    threads = StoreThreads(store)
    for numbers in (range(8), range(8, 10)):
        blocks = [memoryview(bytearray(data_of(number))) for number in numbers]
        transfer = Transfer(1, keys_of(*numbers), blocks)
        threads.write(transfer, b"t")
        while not transfer.is_ended:
            time.sleep(0)
    assert store.find(keys_of(*range(8))) == 6
    assert threads.close(wait_s=60)


def test_no_tenant_takes_the_share_of_another(tmp_path: Path) -> None:
    store = make_store(tmp_path, num_blocks=12)
    write(store, 100, 101, 102, tenant=b"small")
    write(store, *range(50), tenant=b"large")
    assert held(store, range(100, 103)) == {100, 101, 102}
    write(store, *range(200, 210), tenant=b"third")  # the large one gives way, to a third each
    assert held(store, range(100, 103)) == {100, 101, 102}
    assert len(held(store, range(200, 210))) >= 4
    assert len(held(store, range(50))) >= 4
    store.close()


def test_tenants_of_a_block_each_make_room_for_new_ones_in_their_order(tmp_path: Path) -> None:
    store = make_store(tmp_path, num_blocks=8)
    for number in range(24):
        write(store, number, tenant=b"%d" % number)
    assert held(store, range(24)) == set(range(16, 24))
    assert store.usage().num_blocks == store._index.num_blocks() == 8
    num_tenants = store._index._connection.number("SELECT count(*) FROM tenants")
    assert num_tenants == 8  # the index does not grow
    store.close()


def test_what_is_used_after_the_clock_was_set_back_is_evicted_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 2 * 10**18
    monkeypatch.setattr("time.time_ns", lambda: now_ns)
    store = make_store(tmp_path, num_blocks=8)
    write(store, *range(8))
    now_ns = 10**18
    assert store.find(keys_of(0, 1)) == 2
    write(store, *range(100, 104))
    assert held(store, range(8)) == {0, 1, 6, 7}
    store.close()
    store = make_store(tmp_path, num_blocks=8)
    write(store, *range(200, 208))
    assert held(store, range(200, 208)) == set(range(200, 208))
    store.close()


def test_clearing_a_tenant_leaves_nothing_of_it_on_the_device(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, *range(8), tenant=b"a")
    write(store, *range(8, 16), tenant=b"b")
    before = files_of(tmp_path, ".blocks")[0].stat().st_blocks
    store.clear(b"a")
    assert held(store, range(16)) == set(range(8, 16))
    (blocks,) = files_of(tmp_path, ".blocks")
    content = blocks.read_bytes()
    assert not any(content[n * BLOCK_BYTES : (n + 1) * BLOCK_BYTES].strip(b"\0") for n in range(8))
    assert blocks.stat().st_blocks <= before - 8 * BLOCK_BYTES // 512
    named = b"".join(file.read_bytes() for file in files_of(tmp_path, ".index*"))
    assert not [n for n in range(8) if key_of(n) in named]
    assert key_of(8) in named
    assert all(write(store, *range(8)))  # the holes are used again
    assert held(store, range(16)) == set(range(16))
    assert blocks.stat().st_size == len(content)
    store.clear(None)
    assert held(store, range(16)) == set()
    assert not blocks.read_bytes().strip(b"\0")
    store.close()


def test_files_make_a_clear_that_came_without_a_worker_once(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, *range(4), tenant=b"a")
    write(store, *range(4, 8), tenant=b"b")
    store.close()
    store = make_store(tmp_path)
    store.clear(b"a", mark(3))
    assert held(store, range(8)) == {4, 5, 6, 7}
    write(store, *range(4), tenant=b"a")
    store.close()
    store = make_store(tmp_path)
    store.clear(b"a", mark(3))  # what was written since then is not meant
    store.clear(b"a", mark(2))
    assert held(store, range(8)) == set(range(8))
    store.clear(b"b", mark(2))  # the number of another tenant does not say that it was made
    assert held(store, range(8)) == {0, 1, 2, 3}
    store.clear(b"a", mark(4))
    assert held(store, range(8)) == set()
    store.close()


def test_a_clear_of_all_counts_for_each_tenant_and_one_of_another_scheduler_does_not(
    tmp_path: Path,
) -> None:
    store = make_store(tmp_path)
    store.clear(b"a", mark(9))
    store.clear(None, mark(5))
    write(store, 1, tenant=b"a")
    store.clear(b"a", mark(9))
    store.clear(b"b", mark(5))
    store.clear(None, mark(4))
    assert held(store, [1]) == {1}
    store.clear(b"a", mark(1, issuer=b"another".ljust(16)))
    assert held(store, [1]) == set()
    write(store, 1, tenant=b"a")
    store.clear(b"a")  # one without a mark is always made
    assert held(store, [1]) == set()
    store.close()


def test_files_catch_up_with_the_clears_of_an_earlier_scheduler_once(tmp_path: Path) -> None:
    earlier, now = b"an earlier one".ljust(16), b"a scheduler".ljust(16)
    store = make_store(tmp_path)
    write(store, 1, tenant=b"b")
    store.clear(b"a", mark(4, issuer=earlier))
    store.clear(None, ClearMark(earlier, 4, catches_up=True))
    assert held(store, [1]) == {1}
    store.clear(None, ClearMark(earlier, 5, catches_up=True))
    assert held(store, [1]) == set()
    store.clear(b"a", mark(1, issuer=now))
    write(store, 1, tenant=b"b")
    store.close()
    store = make_store(tmp_path)
    store.clear(None, ClearMark(earlier, 5, catches_up=True))
    store.clear(b"a", mark(1, issuer=now))
    assert held(store, [1]) == {1}
    store.close()


@pytest.mark.parametrize("then", ["later clear", "maintenance", "restart"])
@pytest.mark.parametrize("fault", ["truncate", "lock"])
def test_what_a_clear_that_failed_left_is_not_found_after_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, then: str
) -> None:
    calls = FailingCalls(fault, OSError("the device has failed"))
    store = make_store(tmp_path, calls=calls)
    write(store, 1, tenant=b"a")
    with monkeypatch.context() as patch:
        patch.setattr(ClearMarks, "add", failing)
        if fault == "lock":
            patch.setattr(StoreFolder, "locked", failing)
        with pytest.raises(StoreError):
            store.clear(b"a", mark(1))
    with pytest.raises(StoreError):
        store.find(keys_of(1))
    calls.fails = False
    if then == "maintenance":
        store.maintain()
    elif then == "restart":  # without the end of the process before: nothing is synced
        store._close_files()
        store = make_store(tmp_path)
        store.clear(b"a", mark(1))
    store.clear(b"b", mark(2))
    store.clear(None, ClearMark(mark(2).issuer, 2, catches_up=True))  # of the next scheduler
    assert held(store, range(2)) == set()
    (blocks,) = files_of(tmp_path, ".blocks")
    assert not any(blocks.read_bytes())
    assert write(store, 1) == [True]
    store.close()


def test_a_clear_of_a_tenant_that_fails_once_forgets_all_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    write(store, 1, tenant=b"a")
    write(store, 2, tenant=b"b")
    with monkeypatch.context() as patch:
        patch.setattr(DiskIndex, "has_made", failing)
        store.clear(b"a", mark(1))
    assert held(store, range(3)) == set()
    (said,) = caplog.messages
    assert "all blocks are forgotten: the device has failed" in said
    store.close()


def mark(number: int, issuer: bytes = b"a scheduler".ljust(16)) -> ClearMark:
    return ClearMark(issuer, number)


def failing(*_: object) -> None:
    raise OSError("the device has failed")


def test_a_folder_that_was_deleted_is_named_once_with_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path, piece_blocks=1)
    assert write(store, 1) == [True]
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "kv").mkdir(mode=0o700)
    for number in (2, 3):
        with pytest.raises(StoreError):
            write(store, number)
    with pytest.raises(StoreError):
        store.maintain()
    (said,) = caplog.messages
    assert f"the folder {tmp_path / 'kv'} was deleted" in said
    assert "start the worker again" in said
    assert held(store, [1]) == {1}
    store.close()


def test_what_was_evicted_is_gone_too_when_its_tenant_is_cleared(tmp_path: Path) -> None:
    store = make_store(tmp_path, num_blocks=8)
    write(store, *range(8), tenant=b"a")
    (blocks,) = files_of(tmp_path, ".blocks")
    store._index.evict(b"a")  # an eviction whose write fails leaves a slot like this
    store.clear(b"a")
    assert not blocks.read_bytes().strip(b"\0")
    store.close()


def test_a_flipped_bit_is_a_miss_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    write(store, 0, 1, 2)
    (blocks,) = files_of(tmp_path, ".blocks")
    for slot in (0, 2):
        content = bytearray(blocks.read_bytes())
        content[slot * BLOCK_BYTES + 77] ^= 4
        blocks.write_bytes(content)
    assert [read(store, n) is not None for n in (0, 1, 2)] == [False, True, False]
    assert store.find(keys_of(0)) == 0  # it is forgotten
    assert store.usage()[0] == 1
    assert store.usage().num_failed == 2
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
    assert write(store, 0) == [True]
    assert held(store, range(3)) == {0, 1}
    store.close()


def test_blocks_that_were_exchanged_are_misses(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, 0, 1)
    (blocks,) = files_of(tmp_path, ".blocks")
    content = blocks.read_bytes()
    one, two = content[:BLOCK_BYTES], content[BLOCK_BYTES : 2 * BLOCK_BYTES]
    blocks.write_bytes(two + one + content[2 * BLOCK_BYTES :])
    assert held(store, range(2)) == set()
    store.close()


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, *range(4))
    store.close()
    other = make_store(tmp_path, identity=b"\x08" * 32)
    assert held(other, range(4)) == set()
    other.close()


def test_files_of_another_model_under_our_name_are_emptied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(tmp_path)
    write(store, *range(4))
    store.close()
    collides = IDENTITY[:16] + b"\x09" * 16  # a name is half of an identity
    other = make_store(tmp_path, identity=collides)
    assert held(other, range(4)) == set()
    assert "identity is another" in caplog.text
    assert write(other, 1) == [True]
    other.close()


@pytest.mark.parametrize("damage", ["gone", "garbage", "garbled", "cut", "format", "empty blocks"])
def test_a_lost_index_costs_hits_and_no_start(tmp_path: Path, damage: str) -> None:
    store = make_store(tmp_path)
    write(store, *range(40))
    store.close()
    (index,), (blocks,) = files_of(tmp_path, ".index"), files_of(tmp_path, ".blocks")
    if damage == "gone":
        index.unlink()
    elif damage == "garbage":
        index.write_bytes(os.urandom(8192))
    elif damage == "garbled":
        index.write_bytes(index.read_bytes()[:4096] + os.urandom(index.stat().st_size - 4096))
    elif damage == "cut":
        index.write_bytes(index.read_bytes()[:5000])
    elif damage == "format":
        with sqlite3.connect(index) as connection:
            connection.execute("UPDATE state SET value = 99 WHERE name = 'format'")
        connection.close()
    else:
        blocks.write_bytes(b"")
    again = make_store(tmp_path)
    assert held(again, range(40)) == set()
    assert all(write(again, *range(5)))
    assert held(again, range(40)) == set(range(5))
    again.close()


SCHEMA, NUMBER = "text of the schema", "a number that is text"
IN_TWO_TABLES = "INSERT INTO free SELECT slot FROM blocks"
OTHER_COLUMN = "ALTER TABLE tenants RENAME COLUMN name TO other"


def damage_index(index: Path, damage: str) -> None:
    """Damages what SQLite itself takes, or cannot even name."""
    if damage == SCHEMA:
        content = index.read_bytes()
        assert content.count(b"CREATE TABLE free") == 1
        index.write_bytes(content.replace(b"CREATE TABLE free", b"CREATE \xff\xfe\xffLE fre("))
        return
    with closing(sqlite3.connect(index)) as connection, connection:
        if damage == NUMBER:
            damage = "UPDATE state SET value = 'many' WHERE name = 'num_slots'"
        connection.execute(damage)


@pytest.mark.parametrize("damage", [SCHEMA, NUMBER, IN_TWO_TABLES, OTHER_COLUMN])
def test_an_index_whose_content_makes_no_sense_is_replaced(tmp_path: Path, damage: str) -> None:
    store = make_store(tmp_path)
    write(store, *range(8))
    store.close()
    (index,) = files_of(tmp_path, ".index")
    damage_index(index, damage)
    assert len(stored_models(tmp_path / "kv")) == 1
    store = make_store(tmp_path)
    with suppress(StoreError):
        write(store, *range(8, 20))
    store.maintain()
    assert all(write(store, *range(20, 40)))
    assert held(store, range(20, 40)) == set(range(20, 40))
    held(store, range(20))
    store.close()


@pytest.mark.parametrize("damage", [SCHEMA, NUMBER, IN_TWO_TABLES, OTHER_COLUMN])
def test_a_clear_of_a_damaged_index_leaves_nothing_of_the_tenant(
    tmp_path: Path, damage: str
) -> None:
    for clears_folder in (False, True):
        path = tmp_path / str(clears_folder)
        store = make_store(path)
        write(store, *range(8), tenant=b"a")
        store.close()
        damage_index(files_of(path, ".index")[0], damage)
        if clears_folder:
            assert clear(path / "kv", "a") == (1, 0)
            store = make_store(path)
        else:
            store = make_store(path)
            store.clear(b"a")
        assert held(store, range(8)) == set()
        assert all(write(store, *range(8)))
        store.close()


def test_listing_files_whose_index_is_gone_makes_none(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, 1)
    store.close()
    files_of(tmp_path, ".index")[0].unlink()
    (found,) = stored_models(tmp_path / "kv")
    assert (found.num_blocks, found.is_in_use) == (0, False)
    assert not files_of(tmp_path, ".index")
    store = make_store(tmp_path)
    assert write(store, 1) == [True]
    store.close()


def test_an_index_that_is_damaged_while_it_is_open_is_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quota = 3 << 20  # of which the log may take a third
    store = make_store(tmp_path, quota_bytes=quota)
    write(store, *range(500))
    assert 300 < store.usage().num_blocks < 500
    store.close()
    (index,) = files_of(tmp_path, ".index")
    content = index.read_bytes()
    roots = 12 * 4096  # what a start reads is below; blocks are above
    index.write_bytes(content[:roots] + b"\xff" * (len(content) - roots))
    store = make_store(tmp_path, quota_bytes=quota)
    with pytest.raises(StoreError, match="malformed"):
        for number in range(500):
            read(store, number)
    store.maintain()
    assert "malformed" in caplog.text
    assert all(write(store, *range(5)))
    assert held(store, range(500)) == set(range(5))
    store.close()


def test_files_are_for_the_user_alone(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        store = make_store(tmp_path)
        write(store, 1)
        modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "kv").iterdir()}
        assert set(modes.values()) == {0o600}
        assert len(modes) == 4  # blocks, index, its log, lock
        assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700
        store.close()
    finally:
        os.umask(old)


def test_the_bytes_of_a_day_are_bounded_over_restarts(tmp_path: Path) -> None:
    def limit() -> WriteLimit:
        return WriteLimit(bytes_per_day=3 * BLOCK_BYTES, clock=lambda: now)

    now = 5.0 * SECONDS_PER_DAY
    store = make_store(tmp_path, limit=limit())
    assert write(store, 0, 1) == [True, True]
    store.close()
    store = make_store(tmp_path, limit=limit())
    assert write(store, 2, 3) == [True, False]
    now += SECONDS_PER_DAY
    assert write(store, 3) == [True]
    store.close()


def test_a_closed_store_raises_and_changes_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, 0)
    store.close()
    for call in (lambda: write(store, 1), lambda: read(store, 0), lambda: store.find(keys_of(0))):
        with pytest.raises(StoreError):
            call()
    store = make_store(tmp_path)
    assert held(store, range(2)) == {0}
    store.close()
