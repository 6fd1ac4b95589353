"""Blocks on a Redis server: found by all workers with the key, and right whatever happens there."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from signalbox_worker.kv.shared.shared_store import FIRST_PAUSE_S, MAX_UNFINISHED
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store_url import RedisAddress
from tests.gpu_worker.kv.shared.redis_servers import (
    IDENTITY,
    SECRET,
    Clock,
    RedisProcess,
    data_of,
    held,
    hides,
    make_store,
    needs_redis,
    read,
    redis,
    write,
)
from tests.gpu_worker.kv.store.stores import keys_of
from tests.waiting import EVENT_S

pytestmark = [needs_redis, pytest.mark.system]


@pytest.fixture
def server() -> Iterator[RedisProcess]:
    with redis() as one:
        yield one


def test_a_block_of_one_worker_is_found_by_another(server: RedisProcess) -> None:
    one, other = make_store(server), make_store(server)
    assert write(one, 1, 2, 4) == [True, True, True]
    assert other.find(keys_of(1, 2, 3, 4)) == 2
    assert held(other, range(6)) == {1, 2, 4}
    other.maintain()
    assert other.usage().num_blocks == 3
    assert other.usage().num_failed == 0


def test_a_find_counts_leading_keys_over_many_calls(server: RedisProcess) -> None:
    store = make_store(server)
    write(store, *range(1100))
    assert store.find(keys_of(*range(1100))) == 1100
    assert store.find(keys_of(*range(600), 9999, *range(600, 1100))) == 600
    assert store.find(keys_of(9999, 0)) == 0


def test_a_block_that_is_there_is_not_sent_again(server: RedisProcess) -> None:
    store = make_store(server)
    write(store, 1)
    (key,) = server.keys()
    other = bytes(len(server.get(key)))
    server.call(b"SET", key, other)
    assert write(store, 1) == [True]
    assert server.get(key) == other


@pytest.mark.parametrize(("secret", "identity"), [(SECRET, b"\x08" * 32), (b"z" * 32, IDENTITY)])
def test_another_model_and_another_key_find_nothing(
    server: RedisProcess, secret: bytes, identity: bytes
) -> None:
    write(make_store(server), 1)
    other = make_store(server, secret=secret, identity=identity)
    assert other.find(keys_of(1)) == 0
    assert read(other, 1) is None


def test_nothing_of_keys_tenants_and_blocks_can_be_read_on_the_server(server: RedisProcess) -> None:
    write(make_store(server), 1, tenant=b"a tenant")
    (key,) = server.keys()
    stored = key + server.get(key)
    assert b"a block" not in stored
    assert b"a tenant" not in stored
    assert hides(stored, 1)


def test_a_block_under_the_name_of_another_is_not_used(server: RedisProcess) -> None:
    store = make_store(server)
    write(store, 1, 2)
    one, two = server.keys()
    content = {one: server.get(two), two: server.get(one)}
    for key, value in content.items():
        server.call(b"SET", key, value)
    assert store.find(keys_of(1, 2)) == 2
    assert held(store, range(3)) == set()
    assert server.keys() == []  # so that they are written again
    assert store.usage().num_failed == 2


@pytest.mark.parametrize("position", [0, 8, 24, 35, 36, 1000, -1])
def test_a_block_with_a_changed_byte_is_not_used(server: RedisProcess, position: int) -> None:
    store = make_store(server)
    write(store, 1)
    (key,) = server.keys()
    content = bytearray(server.get(key))
    content[position] ^= 1
    server.call(b"SET", key, bytes(content))
    assert read(store, 1) is None
    assert write(store, 1) == [True]
    assert read(store, 1) == data_of(1)


@pytest.mark.parametrize("secret", [b"", b"z" * 32])
def test_a_block_of_a_forger_without_the_key_is_not_used(
    server: RedisProcess, secret: bytes
) -> None:
    """Somebody with the sources, the model and access to the server, and without the key."""
    store = make_store(server)
    write(store, 1)
    (key,) = server.keys()
    ours = server.get(key)
    forger = make_store(server, secret=secret)
    write(forger, 1)
    (forged,) = set(server.keys()) - {key}
    theirs = server.get(forged)
    for content in (theirs, theirs[: len(ours)], ours[:36] + theirs[36:], ours[:24] + theirs[24:]):
        server.call(b"SET", key, content)
        assert read(store, 1) is None


@pytest.mark.parametrize("change", [b"", b"x", b"cut", b"longer", b"three"])
def test_a_block_of_another_length_is_not_used(server: RedisProcess, change: bytes) -> None:
    store = make_store(server)
    write(store, 1)
    (key,) = server.keys()
    content = server.get(key)
    lengths = {b"cut": content[:-1], b"longer": content + b"x", b"three": content * 3}
    server.call(b"SET", key, lengths.get(change, change))
    assert read(store, 1) is None
    assert write(store, 1) == [True]
    assert read(store, 1) == data_of(1)


def test_a_value_that_is_no_string_bypasses_the_store(server: RedisProcess) -> None:
    store = make_store(server)
    write(store, 1)
    (key,) = server.keys()
    server.call(b"DEL", key)
    server.call(b"LPUSH", key, b"x")
    with pytest.raises(StoreError, match="WRONGTYPE"):
        read(store, 1)


def test_an_old_block_that_is_put_back_has_the_bytes_of_its_tokens(server: RedisProcess) -> None:
    """A replay can undo a removal. It cannot change an answer: the name covers what bytes are."""
    store = make_store(server)
    write(store, 1)
    (key,) = server.keys()
    old = server.get(key)
    store.clear(None)
    assert read(store, 1) is None
    server.call(b"SET", key, old)
    assert read(store, 1) == data_of(1)
    newer = make_store(server, identity=b"\x08" * 32)  # new weights
    write(newer, 1)
    (other,) = set(server.keys()) - {key}
    server.call(b"SET", other, old)
    assert read(newer, 1) is None


def test_clearing_a_tenant_leaves_other_tenants_and_models(server: RedisProcess) -> None:
    store, other = make_store(server), make_store(server, identity=b"\x08" * 32)
    write(store, *range(50), tenant=b"a")
    write(store, *range(50, 60), tenant=b"b")
    write(other, 1, tenant=b"a")
    server.call(b"SET", b"not ours", b"x")
    store.clear(b"a")
    assert held(store, range(60)) == set(range(50, 60))
    assert held(other, range(3)) == {1}
    store.clear(None)
    assert held(store, range(60)) == set()
    assert held(other, range(3)) == {1}
    assert server.call(b"EXISTS", b"not ours") == 1


def test_a_clear_that_fails_is_repeated_and_nothing_is_found_before() -> None:
    clock = Clock()
    with redis() as server:
        port = server.port
        store = make_store(server, clock=clock)
        write(store, 1)
        (key,) = server.keys()
        old = server.get(key)
    with pytest.raises(StoreError):
        store.clear(None)
    with redis(port=port) as server:
        server.call(b"SET", key, old)  # as a server that keeps a file has it
        with pytest.raises(StoreError):
            store.find(keys_of(1))
        clock.now += FIRST_PAUSE_S
        with pytest.raises(StoreError, match="has not ended"):
            store.find(keys_of(1))
        store.maintain()
        assert store.find(keys_of(1)) == 0
        assert server.keys() == []


def test_clears_that_failed_are_repeated_once_and_many_as_one_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    with redis() as server:
        port = server.port
        store = make_store(server, clock=clock)
    for number in range(4 * MAX_UNFINISHED):
        with pytest.raises(StoreError):
            store.clear(b"tenant %d" % (number // 2))
    made: list[bytes | None] = []
    clear = store._server.clear
    monkeypatch.setattr(store._server, "clear", lambda of: (made.append(of), clear(of)))
    with redis(port=port) as server:
        write(make_store(server), 1)
        clock.now += 60
        store.maintain()
        assert server.keys() == []
        assert store.find(keys_of(1)) == 0
    assert made[-1] is None
    assert len(made) <= MAX_UNFINISHED + 2


def test_a_clear_asks_a_server_that_is_bypassed() -> None:
    clock = Clock()
    with redis() as server:
        port = server.port
        store = make_store(server, clock=clock)
        write(store, 1)
    with pytest.raises(StoreError):
        store.find(keys_of(1))
    with redis(port=port) as server:
        with pytest.raises(StoreError, match="bypassed"):
            store.find(keys_of(1))
        write(make_store(server), 1)  # as another worker
        store.clear(None)
        assert server.keys() == []
        assert store.find(keys_of(1)) == 0  # it is bypassed no more


def test_a_paused_server_is_bypassed_within_a_bound_and_used_again(
    server: RedisProcess, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    write(make_store(server), 1)
    store = make_store(server, clock=clock, call_s=0.3)
    server.pause()
    with pytest.raises(StoreError, match=r"timed out|slow"):  # a pause has no end of its own
        store.find(keys_of(1))
    for _ in range(100):
        with pytest.raises(StoreError, match="bypassed"):
            store.find(keys_of(1))
        with pytest.raises(StoreError, match="bypassed"):
            write(store, 2)
    server.resume()
    deadline = time.monotonic() + 60
    while True:  # on a loaded machine even a server that runs may take longer than the bound
        clock.now += 60
        try:
            assert store.find(keys_of(1)) == 1
            break
        except StoreError:
            assert time.monotonic() < deadline
    said = [r.levelno for r in caplog.records if "the KV store of the test" in r.getMessage()]
    assert said == [logging.ERROR, logging.WARNING]


@pytest.mark.parametrize("is_tls", [False, True])
def test_a_server_that_starts_again_is_used_without_a_failure(tmp_path: Path, is_tls: bool) -> None:
    options, query = make_certificates(tmp_path) if is_tls else ((), "")
    with redis(*options, is_tls=is_tls) as server:
        port = server.port
        store = make_store(RedisAddress.parse(server.url + query))
        write(store, 1)
    with redis(*options, is_tls=is_tls, port=port):
        assert store.find(keys_of(1)) == 0  # its connections were closed
        write(store, 2)
        assert held(store, range(3)) == {2}
    assert store.usage().num_failed == 0
    store.close()


def test_a_server_that_is_not_there_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with redis() as server:
        address = server.address
    clock = Clock()
    store = make_store(address, clock=clock)
    for _ in range(5):
        with pytest.raises(StoreError):
            store.find(keys_of(1))
        clock.now += 100
    assert len([r for r in caplog.records if "is bypassed" in r.getMessage()]) == 1


def test_a_full_server_refuses_writes_and_is_still_read() -> None:
    with redis("--maxmemory", "3mb", "--maxmemory-policy", "noeviction") as server:
        store = make_store(server)
        with pytest.raises(StoreError, match="OOM"):
            write(store, *range(10_000))
        num_found = store.find(keys_of(*range(10_000)))
        assert 0 < num_found < 10_000
        assert held(store, range(num_found)) == set(range(num_found))


def test_a_server_that_evicts_loses_blocks_and_returns_no_wrong_ones() -> None:
    with redis("--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru") as server:
        store = make_store(server)
        assert all(write(store, *range(1500)))
        assert 0 < len(held(store, range(1500))) < 1500
        store.maintain()
        assert store.usage().capacity_bytes == 4 << 20
        assert store.usage().num_evicted > 0


def test_a_user_who_needs_no_password_is_logged_in() -> None:
    user = ("--user", "worker", "on", "nopass", "~signalbox:kv:*", "+@all")
    with redis(*user, "--requirepass", "another") as server:
        store = make_store(RedisAddress.parse(f"redis://worker@127.0.0.1:{server.port}"))
        assert write(store, 1) == [True]


def test_a_login_is_made_and_one_that_fails_bypasses_the_store(tmp_path: Path) -> None:
    user = ("--user", "worker", "on", ">secret", "~signalbox:kv:*", "+@all")
    with redis(*user, "--requirepass", "another") as server:
        address = RedisAddress.parse(f"redis://worker@127.0.0.1:{server.port}/3")
        store = make_store(address, password="secret")
        assert write(store, 1) == [True]
        assert held(store, range(3)) == {1}
        clock = Clock()
        for wrong, message in (("wrong", "WRONGPASS"), (None, "WRONGPASS")):
            other = make_store(address, password=wrong, clock=clock)
            with pytest.raises(StoreError, match=message) as caught:
                other.find(keys_of(1))
            assert "secret" not in str(caught.value)
            with pytest.raises(StoreError, match="bypassed"):
                other.find(keys_of(1))


@pytest.mark.parametrize("call", ["write", "maintain"])
def test_a_server_that_asks_for_a_password_stays_bypassed(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    with redis("--requirepass", "secret") as server:
        clock = Clock()
        store = make_store(server, clock=clock)
        with pytest.raises(StoreError, match="NOAUTH"):
            store.find(keys_of(1))
        for _ in range(3):
            clock.now += 60
            if call == "maintain":
                store.maintain()
            else:
                with pytest.raises(StoreError, match="NOAUTH"):
                    write(store, 1)
    assert "answers again" not in caplog.text


def test_a_server_that_refuses_lookups_is_asked_less_often() -> None:
    user = ("--user", "default", "on", "nopass", "~*", "+@all", "-touch")
    with redis(*user) as server:
        clock = Clock()
        store = make_store(server, clock=clock)
        num_lookups = 0
        for _ in range(600):
            clock.now += 1
            with suppress(StoreError):
                write(store, 1)
            with pytest.raises(StoreError) as caught:
                store.find(keys_of(1))
            num_lookups += "NOPERM" in str(caught.value)
    assert num_lookups < 60


def make_certificates(tmp_path: Path) -> tuple[tuple[str, ...], str]:
    """Returns the options of a server with TLS, and the query of a client's URL."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    both = ca.issue_cert("127.0.0.1")
    both.private_key_pem.write_to_path(tmp_path / "key.pem")
    both.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    cert, key, authority = (f"{tmp_path}/{name}.pem" for name in ("cert", "key", "ca"))
    options = ("--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority)
    return options, f"?ssl_ca_certs={authority}&ssl_certfile={cert}&ssl_keyfile={key}"


def test_a_connection_by_tls_checks_the_server(tmp_path: Path) -> None:
    options, query = make_certificates(tmp_path)
    trustme.CA().cert_pem.write_to_path(tmp_path / "stranger.pem")
    with redis(*options, is_tls=True) as server:
        store = make_store(RedisAddress.parse(server.url + query))
        write(store, *range(20))
        assert held(store, range(20)) == set(range(20))
        for wrong in ("", query.replace("/ca.pem", "/stranger.pem")):
            other = make_store(RedisAddress.parse(server.url + wrong))
            with pytest.raises(StoreError, match="certificate verify failed"):
                other.find(keys_of(1))
        no_certificate = make_store(RedisAddress.parse(server.url + query.partition("&")[0]))
        with pytest.raises(StoreError):
            no_certificate.find(keys_of(1))


def test_a_user_who_may_only_read_and_write_values_suffices() -> None:
    rights = ("+touch", "+getrange", "+strlen", "+set", "+unlink", "+scan")
    user = ("--user", "worker", "on", ">secret", "~signalbox:kv:*", "-@all", *rights)
    with redis(*user) as server:
        address = RedisAddress.parse(f"redis://worker@127.0.0.1:{server.port}")
        store = make_store(address, password="secret")
        assert write(store, 1, 2) == [True, True]
        assert store.find(keys_of(1, 2)) == 2
        assert held(store, range(3)) == {1, 2}
        store.maintain()  # DBSIZE and INFO are refused, which is no failure
        assert store.usage().num_blocks == 0
        store.clear(None)
        assert held(store, range(3)) == set()
        assert store.usage().num_failed == 0


def test_several_threads_share_a_store(server: RedisProcess) -> None:
    store = make_store(server)
    write(store, *range(64))
    wrong: list[int] = []

    def check() -> None:
        wrong.extend(n for n in range(64) if read(store, n) != data_of(n))

    threads = [threading.Thread(target=check) for _ in range(5)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(EVENT_S)
    assert not wrong
    store.close()
