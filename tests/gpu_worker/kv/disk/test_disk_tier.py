"""The tier opens beside the steps, once it is known what its blocks belong to."""

import json
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.disk.clear_marks import MAX_ISSUERS
from signalbox_worker.kv.disk.disk_tier import DiskTier
from signalbox_worker.kv.disk.store_folder import FolderError
from signalbox_worker.kv.store import late_store
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store_config import DiskConfig
from tests.gpu_worker.kv.disk.disks import BLOCK_BYTES, IDENTITY, data_of
from tests.gpu_worker.kv.store.stores import key_of, keys_of
from tests.signalbox.stacks import signalbox
from tests.waiting import EVENT_S, wait_until

Digests = MutableMapping[str, str]
SHA256 = "ab" * 32


def identify(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
    return IDENTITY


@contextmanager
def opened(
    path: Path,
    how: Callable[[Digests, Callable[[], bool]], bytes] = identify,
    *,
    daily_writes: float | None = None,
    num_ranks: int = 1,
    wait_s: float = 0.0,
) -> Iterator[DiskTier]:
    """Yields a tier; afterwards none of its threads is left."""
    config = DiskConfig(kv_disk=path / "kv", kv_disk_space=0.25, kv_disk_daily_writes=daily_writes)
    tier = DiskTier(config, block_bytes=BLOCK_BYTES, model="m", num_ranks=num_ranks)
    tier.start(how, wait_s=wait_s)
    try:
        yield tier
    finally:
        tier.close()
        tier._thread.join(EVENT_S)
        assert not tier._thread.is_alive()


def write(tier: DiskTier, number: int) -> bool:
    return tier.write(key_of(number), memoryview(data_of(number)), b"t")


def test_a_worker_waits_for_its_tier_within_its_patience_alone(tmp_path: Path) -> None:
    """So the first request after a start finds what an earlier worker has kept."""
    may_go_on = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        may_go_on.wait(EVENT_S)
        return IDENTITY

    with opened(tmp_path, wait_s=EVENT_S) as tier:
        assert tier.is_open
    with opened(tmp_path, identify_late, wait_s=0.01) as tier:
        assert not tier.is_open
        may_go_on.set()


def test_blocks_outlive_the_tier(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        assert tier.capacity.read_bytes_per_s > 0
        assert write(tier, 1)
    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        into = bytearray(BLOCK_BYTES)
        assert tier.find(keys_of(1, 2)) == 1
        assert tier.read(key_of(1), memoryview(into))
        assert bytes(into) == data_of(1)
        assert tier.usage().num_blocks == 1


def test_a_rank_writes_its_share_of_what_its_worker_may_write_in_a_day(tmp_path: Path) -> None:
    daily_writes = 4 * BLOCK_BYTES / (1 << 30)
    with opened(tmp_path, daily_writes=daily_writes, num_ranks=2) as tier:
        assert tier.opened.wait(EVENT_S)
        assert [write(tier, number) for number in range(3)] == [True, True, False]


def test_a_tier_does_not_wait_for_the_weights_of_another(tmp_path: Path) -> None:
    known = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        known.wait()
        return IDENTITY

    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    with opened(tmp_path / "first", identify_late), opened(tmp_path / "second") as tier:
        is_open = tier.opened.wait(EVENT_S)
        known.set()
        assert is_open


def test_nothing_is_found_or_kept_before_the_weights_are_known(tmp_path: Path) -> None:
    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        assert write(tier, 1)
    known = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        assert known.wait(EVENT_S)
        return IDENTITY

    with opened(tmp_path, identify_late) as tier:
        assert tier.find(keys_of(1)) == 0
        assert not tier.read(key_of(1), memoryview(bytearray(BLOCK_BYTES)))
        assert not write(tier, 2)
        with pytest.raises(StoreError, match="not open"):  # what an earlier worker left is there
            tier.clear(None)
        known.set()
        assert tier.opened.wait(EVENT_S)
        assert tier.find(keys_of(1)) == 0
        assert tier.usage().num_blocks == 0


def test_a_worker_that_starts_again_makes_a_clear_before_anything_is_found_and_once(
    tmp_path: Path,
) -> None:
    mark = ClearMark(b"a scheduler".ljust(16), 1)

    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        assert write(tier, 1)
    for is_cleared in (True, False):
        known = threading.Event()

        def identify_late(
            digests: Digests, is_called_off: Callable[[], bool], known: threading.Event = known
        ) -> bytes:
            assert known.wait(EVENT_S)
            return IDENTITY

        with opened(tmp_path, identify_late) as tier:
            with pytest.raises(StoreError, match="not open"):
                tier.clear(None, mark)
            known.set()
            assert tier.opened.wait(EVENT_S)
            assert tier.find(keys_of(1)) == (0 if is_cleared else 1)
            assert write(tier, 1)


def test_a_folder_knows_the_last_clear_of_each_scheduler_that_its_workers_were_told(
    tmp_path: Path,
) -> None:
    first, second = b"a scheduler".ljust(16), b"another".ljust(16)
    known = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        assert known.wait(EVENT_S)
        return IDENTITY

    with opened(tmp_path, identify_late) as tier:
        with pytest.raises(StoreError, match="not open"):
            tier.clear(None, ClearMark(first, 2))
        known.set()
        with opened(tmp_path) as other:
            assert other.opened.wait(EVENT_S)
            other.clear(b"a", ClearMark(second, 1))
            other.clear(b"a", ClearMark(first, 1))
            expected = (ClearMark(first, 2), ClearMark(second, 1))
            assert other.usage().clears == expected
    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        assert tier.capacity.clears == tier.usage().clears == expected
        for number in range(20):
            tier.clear(b"a", ClearMark(bytes([number]) * 16, 1))
        assert len(tier.usage().clears) == MAX_ISSUERS
    (tmp_path / "kv" / "clears.json").write_text("damaged")
    with opened(tmp_path) as tier:
        assert tier.usage().clears == ()


def test_a_tier_that_cannot_open_stays_off_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        raise ValueError("the weights have changed")

    with opened(tmp_path, fail) as tier:
        assert tier.opened.wait(EVENT_S)
        assert not write(tier, 1)
        assert tier.find(keys_of(1)) == 0
        with pytest.raises(StoreError, match="not open"):
            tier.clear(None)
    assert "stays off: the weights have changed" in caplog.text


def test_closing_calls_the_reading_of_weights_off(tmp_path: Path) -> None:
    def identify_until_called_off(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        while not is_called_off():
            pass
        raise ValueError("called off")

    with opened(tmp_path, identify_until_called_off):
        pass


@pytest.mark.parametrize("damage", ["", "[1]", '{"a": "b", "c": 1}', "\0\0\0", "{"])
def test_digests_are_kept_between_starts_and_made_again_if_they_are_lost(
    tmp_path: Path, damage: str
) -> None:
    seen: list[dict[str, str]] = []

    def note(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        seen.append(dict(digests))
        digests["a file"] = SHA256
        return IDENTITY

    def start() -> None:
        with opened(tmp_path, note) as tier:
            assert tier.opened.wait(EVENT_S)

    start()
    start()
    assert seen == [{}, {"a file": SHA256}]
    (tmp_path / "kv" / "digests.json").write_text(damage)
    start()
    start()
    assert seen[2:] == [{}, {"a file": SHA256}]


def test_a_folder_that_others_may_enter_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(0o755)
    with pytest.raises(FolderError, match="mode 700"), opened(tmp_path):
        pass


def test_an_open_tier_maps_no_file_and_is_listed_by_another_process(tmp_path: Path) -> None:
    """A file that is mapped and cut from outside would end the worker by SIGBUS."""
    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        for number in range(3):
            assert write(tier, number)
        for path in (tmp_path / "kv").glob("*-shm"):
            path.write_bytes(b"")
        assert str(tmp_path) not in Path("/proc/self/maps").read_text()
        listed = signalbox("cache", "list", str(tmp_path / "kv"), "--json")
        assert [(one["num_blocks"], one["is_in_use"]) for one in json.loads(listed.stdout)] == [
            (3, True)
        ]
        assert write(tier, 3) and tier.find(keys_of(*range(4))) == 4


def test_a_tier_opens_once_its_folder_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_store, "RETRY_S", 0.01)
    (tmp_path / "kv").mkdir(0o700)
    (tmp_path / "kv" / "digests.json").mkdir()
    with opened(tmp_path) as tier:
        assert tier.opened.wait(EVENT_S)
        assert not write(tier, 1)
        (tmp_path / "kv" / "digests.json").rmdir()
        wait_until(lambda: tier.is_open)
        assert write(tier, 1)
