"""Errors of a device are misses, are said once, and end with the device's trouble."""

import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from gpu_worker.kv_disk.disk_store import DiskStore
from gpu_worker.kv_disk.disk_tier import DiskTier
from gpu_worker.kv_disk.file_calls import FileCalls
from gpu_worker.kv_store.block_store import StoreError
from gpu_worker.kv_store.move_queue import STALLED, MoveQueue
from gpu_worker.kv_store.move_threads import MoveThreads
from gpu_worker.store_config import DiskConfig
from tests.gpu_worker.kv_disk.disks import (
    BLOCK_BYTES,
    IDENTITY,
    FailingCalls,
    data_of,
    held,
    make_store,
    read,
    write,
)
from tests.gpu_worker.kv_store.stores import keys_of

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
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(point)]
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


def test_a_tier_starts_on_a_disk_that_is_full(small_disk: Path) -> None:
    store = make_store(small_disk, piece_blocks=16)
    write(store, *range(8))
    store.close()
    with suppress(OSError), (small_disk / "others").open("wb", buffering=0) as others:
        while others.write(bytes(4096)):
            pass
    config = DiskConfig(kv_disk=small_disk / "kv", kv_disk_space=0.25)
    tier = DiskTier(config, block_bytes=BLOCK_BYTES, model="m", identify=lambda *_: IDENTITY)
    assert tier.opened.wait(60)
    assert tier.capacity.read_bytes_per_s == 0
    assert tier.is_open
    tier.find(keys_of(*range(8)))
    tier.close()


def test_a_full_disk_keeps_what_it_has_and_replaces_it(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = make_store(small_disk, piece_blocks=16)
    for number in range(400):
        attempt(partial(write, store, number))
        if number % 50 == 0:
            attempt(store.maintain)
    found = set[int]()
    for number in range(400):
        with suppress(StoreError):
            found |= held(store, range(number, number + 1))
    assert found
    assert max(found) >= 300  # the newest ones are among them
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
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
    pool = np.zeros((1, BLOCK_BYTES), dtype=np.uint8)
    threads = MoveThreads(block_bytes=BLOCK_BYTES, num_readers=1, clock=lambda: now[0])
    queue = MoveQueue(store, threads, block=lambda index: memoryview(pool[index]))
    try:
        queue.fetch(1, keys_of(0), [0])
        entered.wait()
        now[0] = 60.0
        (result,) = queue.pop_ended()
        assert result.failed == STALLED
    finally:
        calls.fails = False
        released.set()
    while not threads.answer:
        time.sleep(0)
    assert not pool.any()
    queue.fetch(2, keys_of(0), [0])
    while not (ended := queue.pop_ended()):
        time.sleep(0)
    assert ended[0].num_blocks == 1
    assert bytes(pool[0]) == data_of(0)
    queue.close()
    assert threads.close(wait_s=60)
    store.close()
