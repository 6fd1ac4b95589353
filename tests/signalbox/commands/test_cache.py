"""`signalbox cache` lists what a folder holds, and clears what no worker has."""

import asyncio
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from signalbox.cli import main
from signalbox.client.scheduler_client import SchedulerClient
from signalbox_scheduler.config import SchedulerConfig
from tests.gpu_worker.kv.disk.disks import held, make_store, write
from tests.gpu_worker.kv.shared import redis_servers
from tests.gpu_worker.kv.shared.redis_servers import needs_redis, write_secret
from tests.gpu_worker.kv.store.stores import keys_of
from tests.integration.stack import running_scheduler
from tests.ports import free_port
from tests.waiting import EVENT_S

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


def test_the_place_may_follow_a_flag(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    write(store, 1, tenant=b"a")
    write(store, 2, tenant=b"b")
    store.close()
    assert main(["cache", "clear", "--tenant", "a", str(tmp_path / "kv")]) == 0
    store = make_store(tmp_path)
    assert held(store, range(3)) == {2}
    store.close()


def test_advice_on_a_folder_that_is_no_worker_s_changes_no_mode_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o755)
    assert main(["cache", "list", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "name the folder, no link, of a worker's --kv-disk" in err
    assert "chmod" not in err


def test_a_tenant_whose_name_is_no_text_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path).close()
    for place in ([], [str(tmp_path / "kv")]):
        assert main(["cache", "clear", *place, "--tenant", os.fsdecode(b"team-\xff")]) == 1
        assert "--tenant is no UTF-8 text" in capsys.readouterr().err


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


def test_files_that_others_may_read_are_left_and_what_to_do_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_store(tmp_path).close()
    (blocks,) = (tmp_path / "kv").glob("*.blocks")
    blocks.chmod(0o644)
    assert main(["cache", "clear", str(tmp_path / "kv")]) == 1
    assert "not files that this user alone may use: delete them" in capsys.readouterr().err
    assert blocks.exists()


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


@pytest.mark.system
@needs_redis
def test_it_lists_and_clears_what_is_on_a_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_servers.patient(monkeypatch)
    key = write_secret(tmp_path / "key", redis_servers.SECRET)
    with redis_servers.redis() as server:
        store, other = (
            redis_servers.make_store(server, identity=identity)
            for identity in (redis_servers.IDENTITY, OTHER)
        )
        redis_servers.write(store, 1, 2, tenant=b"a")
        redis_servers.write(store, 3, tenant=b"b")
        redis_servers.write(other, 4, tenant=b"a")
        assert main(["cache", "list", server.url, "--json"]) == 0
        first, second = json.loads(capsys.readouterr().out)
        assert (first["num_entries"], second["num_entries"]) == (3, 1)
        assert first["num_bytes"] == 3 * redis_servers.make_seal().sealed_bytes
        assert main(["cache", "list", server.url]) == 0
        assert "2 sets of blocks" in capsys.readouterr().out
        server.call(b"SET", b"signalbox:kv:\x1b[2Jx:1", b"x")
        assert main(["cache", "list", server.url]) == 0
        out = capsys.readouterr().out
        assert "unknown" in out
        assert "\x1b" not in out
        server.call(b"DEL", b"signalbox:kv:\x1b[2Jx:1")
        clear = ["cache", "clear", server.url]
        assert main([*clear, "--tenant", "a"]) == 1  # without the key it has another name
        out, err = capsys.readouterr()
        assert out == ""
        assert "nothing was cleared" in err
        assert "give their --kv-store-key" in err
        assert len(server.keys()) == 4
        with_key = [*clear, "--kv-store-key", str(key), "--tenant"]
        assert main([*with_key, "c"]) == 0  # which has no blocks, as the key proves
        assert "0 blocks cleared" in capsys.readouterr().out
        assert main([*with_key, "a"]) == 0
        assert redis_servers.held(store, range(5)) == {3}
        assert main(clear) == 0
        assert server.keys() == []
        assert main([*clear, "--tenant", "a"]) == 0  # there is nothing that could be its blocks


async def test_a_service_without_workers_says_that_stores_were_not_cleared(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with running_scheduler(SchedulerConfig(port=0)) as scheduler:
        clear = ["cache", "clear", "--scheduler", scheduler.server.address]
        assert await asyncio.to_thread(main, clear) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no worker has joined" in err
    assert "--kv-store" in err


@pytest.mark.parametrize("action", ["list", "clear"])
def test_a_server_that_is_down_is_named_with_what_to_check(
    action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = f"127.0.0.1:{free_port()}"
    assert main(["cache", action, f"redis://{place}"]) == 1
    err = capsys.readouterr().err
    assert f"the KV store at {place} failed: Connection refused; check that a server runs" in err


@pytest.mark.system
@needs_redis
def test_a_failed_login_at_a_server_names_the_password(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    redis_servers.patient(monkeypatch)
    with redis_servers.redis("--requirepass", "p") as server:
        assert main(["cache", "list", server.url]) == 1
        err = capsys.readouterr().err
        assert f"at 127.0.0.1:{server.port} failed: NOAUTH" in err
        assert "--kv-store-password" in err


def test_what_a_server_says_does_not_move_the_cursor_of_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(b"-ERR \x1b[2J\n0 entries cleared\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        assert main(["cache", "clear", f"redis://127.0.0.1:{listener.getsockname()[1]}"]) == 1
        thread.join(EVENT_S)
    err = capsys.readouterr().err
    assert "failed: ERR \\x1b[2J 0 entries cleared; check" in err
    assert err.rstrip("\n").isprintable()


def test_what_a_worker_says_does_not_either(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def clear_cache(_client: SchedulerClient, _tenant: str | None) -> dict[str, str]:
        return {"a:1": "ERR \x1b[2J"}

    monkeypatch.setattr(SchedulerClient, "clear_cache", clear_cache)
    assert main(["cache", "clear"]) == 1
    assert capsys.readouterr().out == "a:1: ERR \\x1b[2J\n"


def test_a_bucket_that_does_not_answer_is_named_with_what_to_check(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "of-the-test")
    assert main(["cache", "list", "s3://bucket/kv"]) == 1
    err = capsys.readouterr().err
    assert "the KV store at s3://bucket/kv failed: " in err
    assert "AWS_ENDPOINT_URL" in err


def test_it_lists_and_clears_a_folder_of_objects(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    from tests.gpu_worker.kv.shared.object_stores import ends, make_object_store

    key = write_secret(tmp_path / "key", redis_servers.SECRET)
    url = f"file://{tmp_path}/kv"
    first, last = ends(2)
    store = make_object_store(url)
    redis_servers.write(store, *range(first + 1), tenant=b"a")
    redis_servers.write(store, *range(first + 1, last + 1), tenant=b"b")
    assert main(["cache", "list", url, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["num_entries"] == 2
    assert main(["cache", "clear", url, "--tenant", "a", "--kv-store-key", str(key)]) == 0
    assert store.find(keys_of(first)) == 0
    assert store.find(keys_of(last)) == 1
    assert main(["cache", "clear", url]) == 0
    assert store.find(keys_of(last)) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list", ""], "there is no folder ''; a server is a URL"),
        (["list", "nowhere"], "there is no folder nowhere; a server is a URL"),
        (["clear", "--kv-store-key", "k", "nowhere"], "there is no folder nowhere"),
        (["list", "/"], "not this user's alone"),
        (["list"], "takes a PLACE"),
        (["clear", "--kv-store-key", "k"], "no effect without the URL"),
        (["clear", "--scheduler", "127.0.0.1:1"], "127.0.0.1:1"),
        (["list", ".", "--tenant", "a"], "--tenant has no effect"),
        (["clear", ".", "--json"], "--json has no effect"),
        (["list", ".", "--kv-store-key", "k"], "no effect with a folder"),
        (["list", "file:///nowhere/kv"], "there is no folder /nowhere/kv"),
        (["list", "memcached://host"], "PLACE is no URL of a store: it must begin with"),
        (["list", "redis://kv.example.com"], "give rediss://"),
        (["list", "redis://:secret@localhost"], "must have no password"),
    ],
)
def test_what_makes_no_sense_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cache", *arguments]) == 1
    assert message in capsys.readouterr().err
