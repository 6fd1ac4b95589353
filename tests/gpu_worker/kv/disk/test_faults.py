"""Errors of a device are misses, are said once, and end with the device's trouble."""

import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from signalbox_contract.sections.store_moves import Fetch, StoreMoves
from signalbox_worker.kv.cache.block_pools import BlockPools
from signalbox_worker.kv.disk.disk_store import DiskStore
from signalbox_worker.kv.disk.disk_tier import DiskTier
from signalbox_worker.kv.disk.slot_file import FileCalls
from signalbox_worker.kv.disk.stored_models import stored_models
from signalbox_worker.kv.store import late_store
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store.pool_transfers import STALLED, PoolTransfers
from signalbox_worker.kv.store.store_threads import StoreThreads
from signalbox_worker.kv.store_config import DiskConfig
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
from tests.gpu_worker.kv.store.stores import keys_of
from tests.waiting import EVENT_S

CALLS = ("read", "write", "allocate", "punch", "truncate", "sync")
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)


def attempt(call: Callable[[], object]) -> bool:
    """Returns whether a call succeeded."""
    try:
        call()
    except StoreError:
        return False
    return True


def live(store: DiskStore) -> None:
    """Makes each call of a store several times, as far as it can."""
    for first in (0, 4, 8):
        for number in range(first, first + 4):
            attempt(partial(write, store, number))
        for number in range(first, first + 4):
            attempt(partial(held, store, range(number, number + 1)))
        attempt(store.maintain)
        attempt(lambda: store.clear(b"other"))


@pytest.mark.parametrize("number", ERRORS)
@pytest.mark.parametrize("name", CALLS)
def test_an_error_of_a_call_is_a_miss_and_no_wrong_block(
    tmp_path: Path, name: str, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    calls = FailingCalls(name, OSError(number, os.strerror(number)))
    store = make_store(tmp_path, calls=calls)
    live(store)
    said = warnings_of(caplog)
    assert len(said) == len(set(said)) <= 3  # of a kind once, though it failed several times
    assert bool(said) == bool(calls.num_failed)
    calls.fails = False
    live(store)
    assert held(store, range(12)) == set(range(12))
    store.close()
    again = make_store(tmp_path)
    assert held(again, range(12)) == set(range(12))
    again.close()


def test_reads_and_writes_in_parts_are_whole(tmp_path: Path) -> None:
    part = 1000
    system = FileCalls()
    reads = FailingCalls("read", instead=lambda fd, into, at: system.read(fd, into[:part], at))
    store = make_store(tmp_path / "r", calls=reads)
    write(store, 0, 1)
    assert held(store, range(2)) == {0, 1}
    store.close()
    writes = FailingCalls("write", instead=lambda fd, data, at: system.write(fd, data[:part], at))
    store = make_store(tmp_path / "w", calls=writes)
    write(store, 0, 1)
    assert held(store, range(2)) == {0, 1}
    assert reads.num_failed == writes.num_failed == 2 * -(-BLOCK_BYTES // part)
    store.close()


def test_a_file_that_ends_early_is_a_miss(tmp_path: Path) -> None:
    calls = FailingCalls("read", instead=lambda *_: 0)
    store = make_store(tmp_path, calls=calls)
    write(store, 0)
    assert read(store, 0) is None
    assert store.find(keys_of(0)) == 0
    assert store.usage().num_failed == 1
    store.close()


def test_a_block_whose_slot_cannot_be_written_leaves_the_others_in_use(tmp_path: Path) -> None:
    calls = FailingCalls("write", OSError(errno.EIO, "I/O error"))
    store = make_store(tmp_path, num_blocks=None, calls=calls)
    assert not attempt(lambda: write(store, 0))
    calls.fails = False
    assert all(write(store, *range(8)))
    assert held(store, range(8)) == set(range(8))
    store.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_is_full_gives_no_slot_up(tmp_path: Path, number: int) -> None:
    """A file system that copies on write takes space for a slot that was allocated, too."""
    calls = FailingCalls("write", OSError(number, os.strerror(number)))
    store = make_store(tmp_path, piece_blocks=8, calls=calls)
    for block in range(8):
        assert not attempt(partial(write, store, block))
    calls.fails = False
    (blocks,) = files_of(tmp_path, ".blocks")
    size = blocks.stat().st_size
    assert all(write(store, *range(8)))
    assert held(store, range(8)) == set(range(8))
    assert blocks.stat().st_size == size
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(point)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("a file system can be mounted by root alone")
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def fill(disk: Path) -> Path:
    """Takes all space with a file that it returns."""
    others = disk / "others"
    with suppress(OSError), others.open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return others


@contextmanager
def opened_tier(disk: Path) -> Iterator[DiskTier]:
    def identify(digests: MutableMapping[str, str], is_called_off: Callable[[], bool]) -> bytes:
        digests["a file"] = "ab" * 32
        return IDENTITY

    config = DiskConfig(kv_disk=disk / "kv", kv_disk_space=0.25)
    tier = DiskTier(config, block_bytes=BLOCK_BYTES, model="m")
    tier.start(identify)
    try:
        assert tier.opened.wait(EVENT_S)
        yield tier
    finally:
        tier.close()
        tier._thread.join(EVENT_S)
        assert not tier._thread.is_alive()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_disk_that_is_full_at_a_start_is_read_and_written_when_there_is_space(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(small_disk)
    write(store, *range(8))
    store.close()
    others = fill(small_disk)
    store = make_store(small_disk)
    for _ in range(3):
        assert store.find(keys_of(*range(8))) == 8
        assert held(store, range(8)) == set(range(8))
        assert write(store, 8, 9) == [False, False]
        store.maintain()
    (said,) = warnings_of(caplog)
    assert "disk is full" in said
    others.unlink()
    store.maintain()
    assert all(write(store, 8, 9))
    store.close()
    store = make_store(small_disk)
    assert held(store, range(12)) == set(range(10))
    store.close()


@pytest.mark.parametrize("tenant", [b"t", None])
def test_a_clear_of_a_disk_that_is_full_leaves_nothing(
    small_disk: Path, tenant: bytes | None
) -> None:
    store = make_store(small_disk, piece_blocks=64)
    write(store, *range(8))
    store.close()
    others = fill(small_disk)
    store = make_store(small_disk)
    assert held(store, range(8)) == set(range(8))
    store.clear(tenant)
    (blocks,) = files_of(small_disk, ".blocks")
    assert not blocks.stat().st_blocks
    assert held(store, range(8)) == set()
    assert store.usage().num_blocks == 0
    others.unlink()
    assert all(write(store, *range(4)))
    store.close()
    store = make_store(small_disk)
    assert held(store, range(8)) == set(range(4))
    store.close()


def test_a_tier_starts_on_a_disk_that_is_full(small_disk: Path) -> None:
    store = make_store(small_disk)
    write(store, *range(8))
    store.close()
    fill(small_disk)
    assert [one.num_blocks for one in stored_models(small_disk / "kv")] == [8]
    with opened_tier(small_disk) as tier:
        assert tier.capacity.read_bytes_per_s == 0
        assert tier.is_open
        assert tier.find(keys_of(*range(8))) == 8


def test_a_tier_without_files_opens_when_a_full_disk_has_space(
    small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_store, "RETRY_S", 0.01)
    (small_disk / "kv").mkdir(mode=0o700)
    (small_disk / "kv" / "lock").touch(mode=0o600)
    others = fill(small_disk)
    with opened_tier(small_disk) as tier:
        assert not tier.is_open
        for _ in range(3):
            with pytest.raises(StoreError, match="not open"):
                tier.clear(None)
        assert tier._clears == [(None, None)]
        others.unlink()
        while not tier.is_open:
            time.sleep(0)
        assert tier.find(keys_of(1)) == 0
    assert len(warnings_of(caplog)) == 1


def test_a_full_disk_keeps_what_it_has_and_replaces_it(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(small_disk, piece_blocks=16)
    for number in range(2000):
        attempt(partial(write, store, number))
        if number % 50 == 0:
            attempt(store.maintain)
    found = set[int]()
    for number in range(2000):
        with suppress(StoreError):
            found |= held(store, range(number, number + 1))
    assert found
    assert max(found) >= 1900  # the newest ones are among them
    said = warnings_of(caplog)
    assert said
    assert len(said) == len(set(said))
    store.close()


def test_a_read_that_hangs_is_a_miss_and_the_store_is_used_again(tmp_path: Path) -> None:
    entered, released = threading.Event(), threading.Event()

    def hang(fd: int, into: memoryview, offset: int) -> int:
        entered.set()
        released.wait()
        return FileCalls().read(fd, into, offset)

    calls = FailingCalls("read", instead=hang)
    store = make_store(tmp_path, calls=calls)
    write(store, 0)
    now = [0.0]
    pools = BlockPools(num_gpu_blocks=1, num_cpu_blocks=1, block_bytes=BLOCK_BYTES)
    pool = pools.cpu_pool
    threads = StoreThreads(store, num_readers=1, clock=lambda: now[0])
    transfers = PoolTransfers(threads)
    transfers.bind(pools)
    try:
        transfers.begin(StoreMoves(fetches=[Fetch(1, keys_of(0), [0])]))
        entered.wait()
        now[0] = 60.0
        (result,) = transfers.pop_ended()
        assert result.failed == STALLED
    finally:
        calls.fails = False
        released.set()
    while not threads.check_answers():
        time.sleep(0)
    assert not pool.any()
    transfers.begin(StoreMoves(fetches=[Fetch(2, keys_of(0), [0])]))
    while not (ended := transfers.pop_ended()):
        time.sleep(0)
    assert ended[0].num_blocks == 1
    assert bytes(pool[0]) == data_of(0)
    assert threads.close(wait_s=60)
