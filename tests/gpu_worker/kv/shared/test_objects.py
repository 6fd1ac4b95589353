"""Runs of blocks in a store of objects: here in a folder, as `obstore` keeps them."""

import os
import shutil
from itertools import pairwise, repeat
from pathlib import Path

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")

import obstore

from signalbox_worker.kv.shared.object_server import LIST_BYTES, MAX_BLOCKS, decode_list
from signalbox_worker.kv.store.block_store import StoreError
from tests.gpu_worker.kv.shared.object_stores import ends, make_object_store
from tests.gpu_worker.kv.shared.redis_servers import (
    IDENTITY,
    SECRET,
    Clock,
    data_of,
    held,
    hides,
    make_seal,
    read,
    write,
)
from tests.gpu_worker.kv.store.stores import keys_of

SEALED_BYTES = make_seal().sealed_bytes


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/kv"


def objects(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "kv").rglob("*") if path.is_file())


def test_a_prefix_is_found_up_to_the_end_of_its_last_run(url: str, tmp_path: Path) -> None:
    last = ends(20)[-1]
    one, other = make_object_store(url), make_object_store(url)
    assert all(write(one, *range(last + 1), last + 1))
    assert other.find(keys_of(*range(last + 5))) == last + 1
    assert held(other, range(last + 5)) == set(range(last + 1))
    assert len(objects(tmp_path)) == 20  # fewer than blocks
    assert other.usage().num_failed == 0


@pytest.mark.parametrize("start", range(12))
def test_a_lookup_may_begin_anywhere_in_a_run(url: str, start: int) -> None:
    last = ends(8)[-1]
    one, other = make_object_store(url), make_object_store(url)
    write(one, *range(last + 1))
    assert other.find(keys_of(*range(start, last + 1))) == last + 1 - start
    assert read(other, start) == data_of(start)


def test_a_run_with_a_gap_is_found_before_the_gap(url: str) -> None:
    runs = [0, *(end + 1 for end in ends(30))]
    start, end = next((a, b) for a, b in pairwise(runs) if b - a >= 4)
    store = make_object_store(url)
    write(store, start, start + 1, *range(start + 3, end))
    assert store.find(keys_of(*range(start, end))) == 2
    assert store.find(keys_of(*range(start + 3, end))) == end - start - 3
    write(store, *range(start, end))  # a run with more blocks takes its place
    assert store.find(keys_of(*range(start, end))) == end - start
    write(store, end - 1)  # and one with fewer does not
    assert store.find(keys_of(*range(start, end))) == end - start


def test_of_a_run_that_is_too_long_the_last_blocks_are_kept(url: str, tmp_path: Path) -> None:
    (end,) = ends(1, start=1000)
    in_between = [n for n in range(3 * MAX_BLOCKS) if n not in ends(3 * MAX_BLOCKS)]
    run = [*in_between[: MAX_BLOCKS + 5], end]
    store = make_object_store(url)
    write(store, *run)
    (path,) = objects(tmp_path)
    assert len(decode_list(path.read_bytes()[:LIST_BYTES])) == MAX_BLOCKS
    assert store.find(keys_of(*run)) == 0
    assert store.find(keys_of(*run[-MAX_BLOCKS:])) == MAX_BLOCKS


def test_nothing_of_tenants_and_blocks_can_be_read_in_the_objects(url: str, tmp_path: Path) -> None:
    numbers = range(ends(3)[-1] + 1)
    write(make_object_store(url), *numbers, tenant=b"a tenant")
    stored = b"".join(path.read_bytes() for path in objects(tmp_path))
    assert b"a tenant" not in stored
    assert hides(stored, *numbers)


@pytest.mark.parametrize(("secret", "identity"), [(SECRET, b"\x08" * 32), (b"z" * 32, IDENTITY)])
def test_another_model_and_another_key_find_nothing(
    url: str, secret: bytes, identity: bytes
) -> None:
    last = ends(4)[-1]
    write(make_object_store(url), *range(last + 1))
    assert make_object_store(url, secret=secret, identity=identity).find(keys_of(0, 1, 2)) == 0


def test_blocks_that_are_swapped_within_and_between_objects_are_not_used(
    url: str, tmp_path: Path
) -> None:
    last = ends(6)[-1]
    store = make_object_store(url)
    write(store, *range(last + 1))
    found = objects(tmp_path)
    contents = [bytearray(path.read_bytes()) for path in found]
    first = LIST_BYTES
    for content, other in zip(contents, contents[1:] + contents[:1], strict=True):
        content[first : first + SEALED_BYTES] = other[-SEALED_BYTES:]
    for path, content in zip(found, contents, strict=True):
        path.write_bytes(content)
    assert store.find(keys_of(*range(last + 1))) == last + 1
    assert len(held(store, range(last + 1))) < last + 1  # and none of them is wrong
    assert store.usage().num_failed


def test_an_object_under_the_name_of_another_gives_misses(url: str, tmp_path: Path) -> None:
    last = ends(6)[-1]
    store = make_object_store(url)
    write(store, *range(last + 1))
    found = objects(tmp_path)
    contents = [path.read_bytes() for path in found]
    for path, content in zip(found, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    assert store.find(keys_of(*range(last + 1))) == 0
    assert held(store, range(last + 1)) == set()


def test_a_list_that_lies_gives_misses(url: str, tmp_path: Path) -> None:
    """Somebody who may write, and knows names, says that blocks are where others are."""
    last = ends(1, start=4)[0]
    store = make_object_store(url)
    write(store, *range(last + 1))
    for path in objects(tmp_path):
        content = bytearray(path.read_bytes())
        names = decode_list(bytes(content[:LIST_BYTES]))
        content[24 : 24 + 16 * len(names)] = b"".join(reversed(names))
        path.write_bytes(content)
    store.find(keys_of(*range(last + 1)))
    held(store, range(last + 1))  # asserts that none is wrong


@pytest.mark.parametrize("length", [0, 1, LIST_BYTES - 1, LIST_BYTES, LIST_BYTES + 5, -1])
def test_an_object_that_is_cut_off_is_written_again(url: str, tmp_path: Path, length: int) -> None:
    last = ends(1)[0]
    store = make_object_store(url)
    write(store, *range(last + 1))
    (path,) = objects(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert store.find(keys_of(*range(last + 1))) == 0
    write(store, *range(last + 1))
    assert store.find(keys_of(*range(last + 1))) == last + 1
    path.write_bytes(path.read_bytes()[:LIST_BYTES])  # between the lookup and the fetch
    assert held(store, range(last + 1)) == set()
    write(store, *range(last + 1))
    assert store.find(keys_of(*range(last + 1))) == last + 1
    path.unlink()
    assert held(store, range(last + 1)) == set()
    write(store, *range(last + 1))
    path.write_bytes(path.read_bytes() + b"x")
    assert store.find(keys_of(*range(last + 1))) == 0


def test_clearing_a_tenant_leaves_other_tenants_and_models(url: str) -> None:
    numbers = [ends(5)[-1] + 1, ends(10)[-1] + 1]
    store, other = make_object_store(url), make_object_store(url, identity=b"\x08" * 32)
    write(store, *range(numbers[0]), tenant=b"a")
    write(store, *range(*numbers), tenant=b"b")
    write(other, *range(numbers[1]), tenant=b"a")
    before = other.find(keys_of(*range(numbers[1])))
    store.clear(b"a")
    assert store.find(keys_of(0)) == 0
    assert store.find(keys_of(*range(*numbers))) == numbers[1] - numbers[0]
    store.clear(None)
    assert store.find(keys_of(*range(*numbers))) == 0
    assert other.find(keys_of(*range(numbers[1]))) == before > 0


def test_a_clear_goes_on_behind_an_object_that_another_worker_has_removed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_object_store(url)
    write(store, *range(ends(6)[-1] + 1))
    listed = obstore.list

    def list_and_remove(*args: object, **options: object) -> object:
        found = [list(some) for some in listed(*args, **options)]  # type: ignore[call-overload]
        objects(tmp_path)[0].unlink()
        return found

    monkeypatch.setattr(obstore, "list", list_and_remove)
    store.clear(None)
    assert objects(tmp_path) == []


def test_a_list_that_never_ends_does_not_keep_a_clear(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signalbox_worker.kv.shared.object_server.SCAN_S", 0.3)
    store = make_object_store(url)
    monkeypatch.setattr(obstore, "list", lambda *_, **__: repeat([]))
    with pytest.raises(StoreError, match="does not end"):
        store.clear(None)


def test_a_store_that_its_client_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    with pytest.raises(ValueError, match=r"az://container/kv cannot be used"):
        make_object_store("az://container/kv")


def test_no_object_has_blocks_of_two_tenants(url: str, tmp_path: Path) -> None:
    first, last = ends(2)
    store = make_object_store(url)
    write(store, *range(first), *range(first + 1, last), tenant=b"a")
    write(store, last, tenant=b"b")
    (path,) = objects(tmp_path)
    assert len(decode_list(path.read_bytes()[:LIST_BYTES])) == 1
    store.clear(b"a")
    assert store.find(keys_of(last)) == 1
    store.clear(b"b")
    assert objects(tmp_path) == []


def test_a_folder_that_others_may_enter_is_refused(url: str, tmp_path: Path) -> None:
    (tmp_path / "kv").mkdir()
    (tmp_path / "kv").chmod(0o755)
    with pytest.raises(ValueError, match="mode 700"):
        make_object_store(url)


def test_a_folder_that_is_deleted_while_it_is_used_comes_back_for_its_user_alone(
    url: str, tmp_path: Path
) -> None:
    folder, last = tmp_path / "kv", ends(2)[-1]
    store = make_object_store(url)
    write(store, *range(last + 1))
    shutil.rmtree(folder)
    assert store.find(keys_of(*range(last + 1))) == 0
    write(store, *range(last + 1))
    assert store.find(keys_of(*range(last + 1))) == last + 1
    assert folder.stat().st_mode & 0o777 == 0o700


def test_nothing_is_read_or_written_in_a_folder_that_others_may_use_meanwhile(
    url: str, tmp_path: Path
) -> None:
    folder, last, clock = tmp_path / "kv", ends(2)[-1], Clock()
    store = make_object_store(url, clock=clock)
    write(store, *range(last + 1))
    assert store.find(keys_of(*range(last + 1))) == last + 1
    folder.chmod(0o777)
    before = objects(tmp_path)
    for call in (
        lambda: store.find(keys_of(*range(last + 1))),
        lambda: read(store, 0),
        lambda: write(store, *range(20, 60)),
    ):
        clock.now += 60
        with pytest.raises(StoreError, match="mode 700"):
            call()
    assert objects(tmp_path) == before
    folder.chmod(0o700)
    clock.now += 60
    assert store.find(keys_of(*range(last + 1))) == last + 1
