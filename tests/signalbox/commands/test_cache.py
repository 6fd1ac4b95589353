"""`signalbox cache` lists what a folder holds, and clears what no worker has."""

import json
from pathlib import Path

import pytest

from signalbox.cli import main
from tests.gpu_worker.kv_disk.disks import held, make_store, write

OTHER = b"\x55" * 32


def test_it_lists_blocks_and_space_of_each_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path)
    write(store, 1, 2, 3, tenant=b"a")
    write(store, 4, tenant=b"b")
    store.close()
    running = make_store(tmp_path, identity=OTHER)
    assert main(["cache", "list", str(tmp_path / "kv"), "--json"]) == 0
    first, second = sorted(json.loads(capsys.readouterr().out), key=lambda one: one["is_in_use"])
    assert (first["num_blocks"], first["num_tenants"], first["is_in_use"]) == (4, 2, False)
    assert (second["num_blocks"], second["is_in_use"]) == (0, True)
    assert first["num_bytes"] >= 4 * 4096
    assert main(["cache", "list", str(tmp_path / "kv")]) == 0
    out = capsys.readouterr().out
    assert "4 blocks" in out
    assert "in use" in out
    assert "2 sets of blocks" in out
    running.close()


def test_it_clears_one_tenant_or_all(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, 1, 2, tenant=b"a")
    write(store, 3, tenant=b"b")
    store.close()
    assert main(["cache", "clear", str(tmp_path / "kv"), "--tenant", "a"]) == 0
    store = make_store(tmp_path)
    assert held(store, range(5)) == {3}
    store.close()
    assert main(["cache", "clear", str(tmp_path / "kv")]) == 0
    assert not list((tmp_path / "kv").glob("*.blocks"))
    store = make_store(tmp_path)
    assert held(store, range(5)) == set()
    store.close()


def test_files_of_a_running_worker_are_left_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = make_store(tmp_path)
    write(running, 1)
    ended = make_store(tmp_path, identity=OTHER)
    ended.close()
    assert main(["cache", "clear", str(tmp_path / "kv")]) == 1
    out, err = capsys.readouterr()
    assert "1 set of blocks cleared" in out
    assert "stop the worker" in err
    assert held(running, range(3)) == {1}
    running.close()


def test_an_index_that_cannot_be_read_is_listed_and_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = make_store(tmp_path)
    write(store, 1)
    store.close()
    (index,) = (tmp_path / "kv").glob("*.index")
    index.write_bytes(b"garbage" * 999)
    assert main(["cache", "list", str(tmp_path / "kv")]) == 0
    assert "unknown" in capsys.readouterr().out
    assert main(["cache", "clear", str(tmp_path / "kv"), "--tenant", "a"]) == 0
    assert not list((tmp_path / "kv").glob("*.blocks"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", "nowhere"], "cannot be opened"),
        (["list", ".", "--tenant", "a"], "--tenant has no effect"),
        (["clear", ".", "--json"], "--json has no effect"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *arguments]) == 1
    assert message in capsys.readouterr().err
