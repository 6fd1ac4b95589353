"""What a server of blocks may answer: nothing of it is taken for a block, and every call ends."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from signalbox_worker.kv.shared.redis_server import RedisServer
from signalbox_worker.kv.shared.shared_store import Bypass, SharedStore
from signalbox_worker.kv.store.block_store import StoreError, StoreUsage
from signalbox_worker.kv.store_url import RedisAddress
from tests.gpu_worker.kv.shared.redis_servers import Clock, make_seal, read, write
from tests.gpu_worker.kv.store.stores import keys_of
from tests.waiting import EVENT_S

SIZE = make_seal().sealed_bytes
NAMED = b"$%d\r\n" % SIZE


@contextmanager
def answering(
    answer: Callable[[socket.socket], None], *, call_s: float = 60.0
) -> Iterator[SharedStore]:
    """Yields a store on a server that reads a command and does `answer` with the connection."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    while connection.recv(1 << 16):
                        answer(connection)
                except OSError:
                    pass  # the client has left

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
    client = RedisServer(RedisAddress.parse(url), group="g", sealed_bytes=SIZE, call_s=call_s)
    store = SharedStore(client, make_seal(), Bypass("of the test", clock=Clock()))
    try:
        yield store
    finally:
        store.close()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(EVENT_S)
        assert not thread.is_alive()


def sending(data: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"$99999999999999\r\n" + bytes(1 << 16),
        NAMED[:-2] + b"9\r\n" + bytes(SIZE),
        b"$x\r\n",
        b":1\r\n",
        b"*1\r\n$1\r\nx\r\n",
        b"x" * (1 << 16),
        NAMED + bytes(SIZE) + b"xx",
        b"-ERR no\r\n",
        b"\r\n",
        b"$" + b"9" * 4000 + b"\r\n",
    ],
)
def test_an_answer_that_is_no_block_bypasses_the_store(data: bytes) -> None:
    with answering(sending(data)) as store:
        with pytest.raises(StoreError):
            read(store, 1)
        with pytest.raises(StoreError, match="bypassed"):
            read(store, 1)


@pytest.mark.parametrize("data", [b"*1\r\n" * 10_000, b"*99999999\r\n", b"*2\r\n:1\r\n"])
def test_a_list_without_an_end_bypasses_the_store(data: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)

    with answering(answer) as store, pytest.raises(StoreError):
        store.find(keys_of(1))


@pytest.mark.parametrize("data", [b"+OK\r\n", b":2\r\n", b"$-1\r\n", b"*0\r\n"])
def test_a_find_counts_nothing_but_ones(data: bytes) -> None:
    with answering(sending(data)) as store:
        assert store.find(keys_of(1)) == 0


def test_answers_that_are_too_long_together_bypass_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signalbox_worker.kv.shared.redis_connection.MAX_CALL_BYTES", 1 << 16)
    data = b"*100\r\n" + 100 * (b"$1024\r\n" + bytes(1024) + b"\r\n")
    with answering(sending(data)) as store, pytest.raises(StoreError, match=r"too long|more than"):
        store.find(keys_of(1))


@pytest.mark.parametrize("number", ["\u00b2", "-1", "9" * 5000, "1_0", ""])
def test_what_a_server_says_that_it_holds_is_a_number_or_nothing(number: str) -> None:
    text = f"used_memory:{number}\r\nmaxmemory:{number}\r\nevicted_keys:{number}".encode()
    info = b"$%d\r\n%b\r\n" % (len(text), text)
    with answering(sending(b":-5\r\n" + info + info)) as store:
        store.maintain()
        assert store.usage() == StoreUsage(0, 0, 0)


def test_a_block_that_is_cut_off_bypasses_the_store() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(NAMED + bytes(SIZE // 2))
        connection.shutdown(socket.SHUT_WR)

    with answering(answer) as store, pytest.raises(StoreError, match="closed the connection"):
        read(store, 1)


@pytest.mark.parametrize("call", ["read", "find"])
def test_an_answer_that_comes_byte_by_byte_ends_by_the_deadline(call: str) -> None:
    """Each byte is in time; the whole never is."""

    def answer(connection: socket.socket) -> None:
        for byte in NAMED + bytes(SIZE):
            connection.sendall(bytes([byte]))
            time.sleep(0.01)

    with answering(answer, call_s=0.5) as store, pytest.raises(StoreError, match=r"slow|timed out"):
        _ = read(store, 1) if call == "read" else store.find(keys_of(1))


def test_a_server_that_takes_nothing_ends_a_write_by_the_deadline() -> None:
    is_over = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b":0\r\n")
        assert is_over.wait(EVENT_S)

    with answering(answer, call_s=0.5) as store:
        with pytest.raises(StoreError, match=r"slow|timed out"):
            write(store, 1)
        is_over.set()


def test_a_scan_that_never_ends_does_not_keep_a_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signalbox_worker.kv.shared.redis_server.SCAN_S", 0.3)
    with (
        answering(sending(b"*2\r\n$1\r\n7\r\n*0\r\n")) as store,
        pytest.raises(StoreError, match="does not end"),
    ):
        store.clear(None)
