"""A folder is for its user alone; several processes share it, each with files of its own."""

import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from signalbox_worker.kv.disk.disk_store import DiskStore
from signalbox_worker.kv.disk.index_schema import LOG_BYTES
from signalbox_worker.kv.disk.store_folder import FolderError, StoreFolder, file_system_of
from signalbox_worker.kv.store.block_store import StoreError
from tests.gpu_worker.kv.disk.disks import (
    IDENTITY,
    files_of,
    held,
    make_store,
    write,
)
from tests.waiting import EVENT_S

OTHER = b"\x55" * 32


def space_of(path: Path) -> int:
    return sum(512 * file.stat().st_blocks for file in (path / "kv").iterdir())


def test_a_folder_is_made_for_its_user_alone(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "kv")
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    folder.close()


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(mode)
    with pytest.raises(FolderError, match="mode 700"):
        StoreFolder(tmp_path / "kv")


def test_what_is_no_folder_or_a_link_to_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(FolderError, match="no link"):
            StoreFolder(tmp_path / name)


def test_a_folder_without_a_parent_is_refused_and_the_parent_named(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match=rf"make {tmp_path}/absent first"):
        StoreFolder(tmp_path / "absent" / "kv")
    assert not (tmp_path / "absent").exists()


@pytest.mark.parametrize("name", ["lock", f"{IDENTITY.hex()[:32]}-0.blocks"])
@pytest.mark.parametrize("kind", ["link", "second name", "readable"])
def test_files_that_are_not_ours_alone_are_not_opened(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / "kv").mkdir(mode=0o700)
    victim, planted = tmp_path / "victim", tmp_path / "kv" / name
    victim.write_bytes(b"precious")
    victim.chmod(0o600)
    if kind == "link":
        planted.symlink_to(victim)
    elif kind == "second name":
        planted.hardlink_to(victim)
    else:
        planted.write_bytes(b"precious")
        planted.chmod(0o644)
        victim = planted
    if name == "lock":
        with pytest.raises((StoreError, FolderError)):
            make_store(tmp_path)
    else:
        store = make_store(tmp_path)  # takes another name
        assert write(store, 1) == [True]
        store.close()
    assert victim.read_bytes() == b"precious"


def test_an_index_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, 1)
    store.close()
    (index,) = files_of(tmp_path, ".index")
    victim = tmp_path / "victim"
    index.rename(victim)
    index.symlink_to(victim)
    before = victim.read_bytes()
    store = make_store(tmp_path)
    assert write(store, 2) == [True]
    assert victim.read_bytes() == before
    store.close()


MOUNTS = r"""
22 1 8:1 / / rw - ext4 /dev/sda1 rw
23 22 0:40 / {0}/nfs rw - nfs4 server:/export rw
24 22 0:41 / {0}/with\040space rw - fuse.sshfs host: rw
25 23 8:2 / {0}/nfs/local rw - xfs /dev/sdb1 rw
26 22 0:42 / {0}/over rw - ext4 /dev/sdc rw
27 22 0:43 / {0}/over rw - cifs //server/share rw
"""


@pytest.mark.parametrize(
    ("folder", "name", "is_network"),
    [
        ("", "ext4", False),
        ("nfs/deep/er", "nfs4", True),
        ("nfs/local/a", "xfs", False),
        ("nfsx", "ext4", False),
        ("with space", "fuse.sshfs", True),
        ("over", "cifs", True),
    ],
)
def test_the_file_system_is_that_of_the_deepest_and_last_mount(
    tmp_path: Path, folder: str, name: str, is_network: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS.strip().replace("{0}", str(tmp_path)))
    assert file_system_of(tmp_path / folder, mounts) == (name, is_network)


def test_a_folder_on_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 1 0:40 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr("signalbox_worker.kv.disk.store_folder._MOUNTS", mounts)
    monkeypatch.setattr(
        "signalbox_worker.kv.disk.store_folder.file_system_of",
        lambda path: file_system_of(path, mounts),
    )
    with pytest.raises(FolderError, match="nfs4"):
        StoreFolder(tmp_path / "kv")


def _own(path: Path, connection: Connection) -> None:
    store = make_store(path)
    write(store, 1)
    connection.send(store._files.name)
    connection.recv()  # until it is killed


def test_a_second_worker_takes_other_files_and_the_first_ones_after_a_kill(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    other = context.Process(target=_own, args=(tmp_path, theirs))
    other.start()
    try:
        first = ours.recv()
        store = make_store(tmp_path)
        assert store._files.name != first
        assert held(store, range(3)) == set()
        store.close()
    finally:
        other.kill()
        other.join()
    stores = [make_store(tmp_path), make_store(tmp_path), make_store(tmp_path)]
    names = [store._files.name for store in stores]
    assert len(set(names)) == 3
    assert first in names[:2]
    assert held(stores[names.index(first)], range(3)) == {1}
    for store in stores:
        store.close()


def test_of_free_files_of_a_model_the_newest_are_taken(tmp_path: Path) -> None:
    stores = [make_store(tmp_path) for _ in range(3)]
    for number, store in enumerate(stores):
        write(store, number)
    for store in stores:
        store.close()
    for number, blocks in enumerate(files_of(tmp_path, ".blocks")):
        os.utime(blocks, (1000 + number % 2, 1000 + number % 2))
    store = make_store(tmp_path)
    assert held(store, range(3)) == {1}
    store.close()


def test_files_of_no_worker_make_room_the_oldest_first(tmp_path: Path) -> None:
    for number in range(3):
        store = make_store(tmp_path, identity=bytes([number]) * 32, piece_blocks=64)
        write(store, number)
        store.close()
    old, middle, new = sorted(files_of(tmp_path, ".blocks"))
    for number, blocks in enumerate((middle, new, old)):
        os.utime(blocks, (1000 + number, 1000 + number))
    quota = space_of(tmp_path) + LOG_BYTES + (128 << 10)  # without the oldest, it is enough
    store = make_store(tmp_path, identity=OTHER, quota_bytes=quota, piece_blocks=64)
    assert write(store, 9) == [True]
    assert [blocks.exists() for blocks in (middle, new, old)] == [False, True, True]
    assert space_of(tmp_path) <= quota
    store.close()


QUOTA, LARGE = 16 << 20, 1 << 16


def make_large(path: Path, *, identity: bytes = IDENTITY, quota_bytes: int = QUOTA) -> DiskStore:
    """Opens a store whose blocks are large beside their rows in the index."""
    return make_store(
        path, identity=identity, quota_bytes=quota_bytes, block_bytes=LARGE, piece_blocks=8
    )


def test_workers_with_one_folder_come_to_equal_shares_of_its_quota(tmp_path: Path) -> None:
    first = make_large(tmp_path)
    write(first, *range(300))
    alone = first.usage().num_blocks
    second = make_large(tmp_path, identity=OTHER)
    for start in range(0, 300, 10):
        write(second, *range(start, start + 10))
        first.maintain()
        second.maintain()
        assert space_of(tmp_path) <= QUOTA
    counts = [store.usage().num_blocks for store in (first, second)]
    assert alone > 1.5 * counts[0]
    assert min(counts) > 0.8 * max(counts)
    assert len(held(first, range(300))) == counts[0]
    assert len(held(second, range(300))) == counts[1]
    first.close()
    second.close()


def test_a_worker_alone_uses_the_whole_quota(tmp_path: Path) -> None:
    store = make_large(tmp_path)
    write(store, *range(300))
    for _ in range(3):
        store.maintain()
    assert store.usage().num_blocks * LARGE > 0.85 * QUOTA
    assert space_of(tmp_path) <= QUOTA
    store.close()


def test_a_lower_quota_is_kept_from_the_next_start_on(tmp_path: Path) -> None:
    store = make_large(tmp_path)
    write(store, *range(200))
    store.close()
    store = make_large(tmp_path, quota_bytes=8 << 20)
    store.maintain()
    assert space_of(tmp_path) <= 8 << 20
    assert 0 < len(held(store, range(200))) == store.usage().num_blocks
    store.close()


def test_a_store_that_gives_much_space_back_writes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(tmp_path)
    write(store, *range(400))
    store.close()
    store = make_store(tmp_path, quota_bytes=2 << 20)
    written = []

    def write_one(_seconds: float) -> None:
        with ThreadPoolExecutor(1) as another:
            written.append(another.submit(write, store, 1000 + len(written)).result(EVENT_S))

    monkeypatch.setattr("signalbox_worker.kv.disk.disk_store.time.sleep", write_one)
    store.maintain()
    assert len(written) > 1
    assert all(one == [True] for one in written)
    monkeypatch.undo()
    assert space_of(tmp_path) <= 2 << 20
    assert 0 < len(held(store, range(400))) < 400
    store.close()


def test_several_workers_may_measure_the_disk_at_once_and_leave_nothing(tmp_path: Path) -> None:
    folder = StoreFolder(tmp_path / "kv")
    with ThreadPoolExecutor(8) as workers:
        rates = list(workers.map(lambda _: folder.measure_read(1 << 20), range(16)))
    assert min(rates) > 0
    assert not list((tmp_path / "kv").iterdir())
    folder.close()
