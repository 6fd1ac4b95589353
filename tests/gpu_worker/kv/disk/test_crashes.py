"""A store that was killed at any point, or lost its power, returns what was written or nothing."""

import os
import random
import shutil
import signal
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from signalbox_worker.kv.disk import index_schema
from signalbox_worker.kv.disk.slot_file import FileCalls
from tests.gpu_worker.kv.disk.disks import (
    BLOCK_BYTES,
    UnsyncedCalls,
    files_of,
    held,
    make_store,
    read,
    write,
)

NUM_SLOTS = 4
KEPT, CLEARED, ALL = range(2), range(4, 6), range(12)


class KilledCalls(FileCalls):
    """Ends the process by SIGKILL at the N-th call, half of a write having been done."""

    def __init__(self, num_calls: int) -> None:
        self.num_left = num_calls

    def count(self, *_: object) -> None:
        self.num_left -= 1
        if self.num_left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        if not self.num_left:
            super().write(fd, data[: len(data) // 2], offset)
        self.count()
        return super().write(fd, data, offset)

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        self.count()
        if offset + num_bytes > NUM_SLOTS * BLOCK_BYTES:
            raise OSError("no space")
        super().allocate(fd, offset, num_bytes)

    def punch(self, fd: int, offset: int, num_bytes: int) -> None:
        self.count()
        super().punch(fd, offset, num_bytes)

    def sync(self, fd: int) -> None:
        self.count()
        super().sync(fd)


def live(path: Path, calls: KilledCalls) -> None:
    """A store's life: it grows, syncs, evicts, clears a tenant, and closes."""
    store = make_store(path, calls=calls)
    write(store, *KEPT)
    store.maintain()
    write(store, *CLEARED, tenant=b"cleared")
    write(store, 8)  # evicts
    store.clear(b"cleared")
    write(store, 9)
    store.close()


def live_until(path: Path, num_calls: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Lives in another process that is killed at a call or a statement; returns whether it was."""
    if not (child := os.fork()):
        calls = KilledCalls(num_calls)
        connect = index_schema.connect

        def connect_and_count(*args: Any) -> sqlite3.Connection:
            connection = connect(*args)
            connection.set_trace_callback(calls.count)
            return connection

        monkeypatch.setattr("signalbox_worker.kv.disk.index_schema.connect", connect_and_count)
        try:
            live(path, calls)
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == 0
    return os.WIFSIGNALED(status)


def test_a_store_survives_a_kill_at_each_call_and_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = 0
    while live_until(path := tmp_path / str(num_calls), num_calls, monkeypatch):
        store = make_store(path)
        held(store, ALL)  # checks each of them
        assert all(write(store, *ALL)), "every slot is of use again"
        assert held(store, ALL) == set(ALL)
        assert store._index.num_blocks() == store.usage().num_blocks == len(ALL)
        store.close()
        shutil.rmtree(path)
        num_calls += 3  # each point is a process and two starts
    assert num_calls > 50
    last = make_store(tmp_path / str(num_calls))
    assert held(last, CLEARED) == set()
    last.close()


class Lossy(NamedTuple):
    """A store whose device is about to lose its power."""

    calls: UnsyncedCalls
    synced: set[int]
    cleared: set[int]
    log: bytes
    """The index's log when it was synced last."""


def make_lossy(path: Path, rng: random.Random) -> Lossy:
    calls = UnsyncedCalls()
    store = make_store(path, calls=calls)
    synced, cleared, log = set[int](), set[int](), b""
    for number in range(rng.randrange(4, 24)):
        fate = rng.random()
        write(store, number, tenant=b"cleared" if number % 3 == 0 else b"kept")
        if fate < 0.15:
            store.maintain()
            synced = held(store, ALL)
        elif fate < 0.25:
            cleared = {n for n in range(number + 1) if n % 3 == 0}
            store.clear(b"cleared")
            synced -= cleared
        if fate < 0.25:
            log = files_of(path, ".index-wal")[0].read_bytes()
    return Lossy(calls, synced, cleared, log)


def lose_log(path: Path, synced: bytes, rng: random.Random) -> None:
    """Cuts a log off behind its head, which is synced when it is written anew; what was synced has
    been moved into the index."""
    content = path.read_bytes()
    if content != synced:
        kept = rng.randrange(min(32, len(content)), len(content) + 1)
        path.write_bytes(content[:kept] + rng.randbytes(rng.choice((0, 40, 5000))))


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_costs_what_was_not_synced_and_no_more(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lossy = make_lossy(tmp_path / "before", rng)
    shutil.copytree(tmp_path / "before", tmp_path / "after")  # what the process saw
    after = tmp_path / "after"
    lose_log(files_of(after, ".index-wal")[0], lossy.log, rng)
    lossy.calls.lose(files_of(after, ".blocks")[0], rng)
    store = make_store(after)
    found = held(store, ALL)
    assert found >= lossy.synced
    assert not found & lossy.cleared
    assert all(write(store, *ALL))
    assert held(store, ALL) == set(ALL)
    store.close()


def test_a_clear_that_was_cut_off_ends_at_the_next_start(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, *range(6), tenant=b"a")
    store._index.clear(None)  # the process ends here
    (blocks,) = files_of(tmp_path, ".blocks")
    assert blocks.read_bytes().strip(b"\0")
    store._index.close()
    store._slots.close()
    again = make_store(tmp_path)
    assert not blocks.read_bytes().strip(b"\0")
    assert read(again, 0) is None
    again.close()
