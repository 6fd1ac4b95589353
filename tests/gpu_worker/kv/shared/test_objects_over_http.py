"""The same over HTTP: S3 as moto answers, also when it is overloaded, slow or silent."""

import logging
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

pytest.importorskip("obstore", reason="obstore is not installed")
pytest.importorskip("moto", reason="moto is not installed")

from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from signalbox_worker.kv.shared.shared_store import SharedStore
from signalbox_worker.kv.shared.stored_groups import StoreAccess
from signalbox_worker.kv.store.block_store import StoreError
from tests.gpu_worker.kv.shared.object_stores import ends, make_object_store
from tests.gpu_worker.kv.shared.redis_servers import Clock, held, read, write
from tests.gpu_worker.kv.store.stores import keys_of
from tests.waiting import EVENT_S

pytestmark = [pytest.mark.system]

BUCKET = "s3://bucket/of/tests"
LAST = ends(6)[-1]
PAGE = b"<html><body>Log in</body></html>"
_OVERLOADED = b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>"


NUM_PARTS = 256


def _announcing_more(start_response: Any) -> Any:
    """Returns what starts an answer that is 256 MiB longer."""

    def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        others = [one for one in headers if one[0].lower() != "content-length"]
        (length,) = (int(value) for name, value in headers if name.lower() == "content-length")
        return start_response(
            status, [*others, ("Content-Length", str(length + (NUM_PARTS << 20)))], *rest
        )

    return start


class Moto:
    """moto's server on a port of this machine, with faults before it."""

    def __init__(self) -> None:
        self.fault = ""
        self.num_requests = 0
        self.num_parts = 0
        """Parts sent of answers that are too long."""
        self._app: Callable[..., Iterable[bytes]] = DomainDispatcherApplication(create_backend_app)
        self._ended = threading.Event()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        self.num_requests += 1
        if self.fault == "overloaded":
            start_response("503 Slow Down", [("Content-Type", "application/xml")])
            return [_OVERLOADED]
        if self.fault in ("page", "page in ranges"):
            is_range = self.fault != "page" and "HTTP_RANGE" in environ
            whole = ("Content-Range", f"bytes 0-{len(PAGE) - 1}/{len(PAGE)}")
            dated = ("Last-Modified", "Fri, 27 Nov 2026 00:00:00 GMT")
            length = ("Content-Length", str(len(PAGE)))
            start_response("206 Partial" if is_range else "200 OK", [whole, dated, length])
            return [PAGE]
        if self.fault == "silent":
            self._ended.wait()
        if self.fault == "long":
            return self._too_long(self._app(environ, _announcing_more(start_response)))
        answer = self._app(environ, start_response)
        return self._slowly(answer) if self.fault == "slow" else answer

    def _too_long(self, answer: Iterable[bytes]) -> Iterator[bytes]:
        yield from answer
        for _ in range(NUM_PARTS):
            yield bytes(1 << 20)
            self.num_parts += 1

    def _slowly(self, answer: Iterable[bytes]) -> Iterator[bytes]:
        for part in answer:
            for byte in part:
                yield bytes([byte])
                if self._ended.wait(0.02):
                    return

    def close(self) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join(EVENT_S)
        self._server.server_close()
        assert not self._thread.is_alive()


@pytest.fixture
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[Moto]:
    server = Moto()
    environment = {
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    request = urllib.request.Request(f"{server.url}/bucket", method="PUT")
    urllib.request.urlopen(request).close()
    try:
        yield server
    finally:
        server.close()


def test_a_prefix_of_one_worker_is_found_by_another(moto: Moto) -> None:
    one, other = make_object_store(BUCKET), make_object_store(BUCKET)
    moto.num_requests = 0
    write(one, *range(LAST + 1))
    assert moto.num_requests == 2 * 6  # of each run a look whether it is there, and a write
    assert other.find(keys_of(*range(LAST + 5))) == LAST + 1
    assert held(other, range(LAST + 5)) == set(range(LAST + 1))
    one.clear(b"another tenant")
    assert other.find(keys_of(*range(LAST + 1))) == LAST + 1
    one.clear(b"t")
    assert other.find(keys_of(*range(LAST + 1))) == 0
    assert held(other, range(LAST + 1)) == set()
    assert one.usage().num_failed == other.usage().num_failed == 0


@pytest.mark.parametrize("fault", ["overloaded", "slow", "silent"])
def test_a_store_that_does_not_answer_is_bypassed_and_used_again(
    moto: Moto, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    store = make_object_store(BUCKET, clock=clock)
    write(store, *range(LAST + 1))
    hurried = make_object_store(BUCKET, clock=clock, read_s=0.5)
    moto.fault = fault
    with pytest.raises(StoreError):
        hurried.find(keys_of(*range(LAST + 1)))
    num_before = moto.num_requests
    for _ in range(100):
        with pytest.raises(StoreError, match="bypassed"):
            hurried.find(keys_of(*range(LAST + 1)))
        with pytest.raises(StoreError, match="bypassed"):
            read(hurried, 0)
    assert moto.num_requests <= num_before + 2 * 6  # those under way, and their repetitions
    moto.fault = ""
    clock.now += 60
    assert store.find(keys_of(*range(LAST + 1))) == LAST + 1
    said = [r.levelno for r in caplog.records if "is bypassed" in r.getMessage()]
    assert said == [logging.ERROR]


def test_blocks_that_wait_for_the_end_of_their_run_do_not_end_the_bypass(
    moto: Moto, caplog: pytest.LogCaptureFixture
) -> None:
    clock, (first,) = Clock(), ends(1)
    store = make_object_store(BUCKET, clock=clock)
    moto.fault = "overloaded"
    with pytest.raises(StoreError):  # of one run, or requests for others would still be under way
        store.find(keys_of(*range(first + 1)))
    num_requests = moto.num_requests
    waiting = [number for number in range(LAST) if number not in ends(6)]
    for _ in range(3):
        clock.now += 60
        assert write(store, waiting[0]) == [True]
        store.maintain()
    assert moto.num_requests == num_requests
    assert "answers again" not in caplog.text
    moto.fault = ""
    store.find(keys_of(*range(LAST + 1)))  # nothing has taken its attempt
    assert caplog.text.count("answers again") == 1


@pytest.mark.parametrize("fault", ["overloaded", "slow", "silent"])
def test_a_fetch_that_fails_returns_no_block(moto: Moto, fault: str) -> None:
    clock = Clock()
    write(make_object_store(BUCKET), *range(LAST + 1))
    store = make_object_store(BUCKET, clock=clock, read_s=1.0)
    await_found(store, clock)
    moto.fault = fault
    with pytest.raises(StoreError, match="reading a block"):
        read(store, 0)
    moto.fault = ""
    await_found(store, clock)


@pytest.mark.parametrize("call", ["find", "read"])
def test_an_answer_that_is_too_long_is_not_received(moto: Moto, call: str) -> None:
    store = make_object_store(BUCKET)
    write(store, *range(LAST + 1))
    keys = keys_of(*range(LAST + 1))
    assert store.find(keys) == LAST + 1
    moto.fault = "long"
    with pytest.raises(StoreError, match="longer than what was asked for"):
        _ = store.find(keys) if call == "find" else read(store, 0)
    assert moto.num_parts < NUM_PARTS


def await_found(store: SharedStore, clock: Clock) -> None:
    """Looks all blocks up; on a loaded machine even a good server may be late."""
    deadline = time.monotonic() + 60
    while True:
        clock.now += 60
        try:
            assert store.find(keys_of(*range(LAST + 1))) == LAST + 1
            return
        except StoreError:
            assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("fault", "reason"), [("page", "non-partial"), ("page in ranges", "no object store")]
)
def test_a_page_for_people_is_no_empty_list(moto: Moto, fault: str, reason: str) -> None:
    store = make_object_store(BUCKET)
    store.clear(b"t")
    access = StoreAccess(BUCKET, is_trusted=True)
    assert access.clear(None) == 0
    assert access.groups() == []
    write(store, *range(LAST + 1))
    moto.fault = fault
    with pytest.raises(StoreError, match=reason):
        store.clear(b"t")
    for call in (access.groups, lambda: access.clear(None)):
        with pytest.raises(OSError, match="check the bucket's name"):
            call()
    moto.fault = ""
    assert access.clear(None) == 6


def test_a_bucket_that_is_not_there_is_empty_and_keeps_nothing(moto: Moto) -> None:
    store = make_object_store("s3://no-such-bucket")
    assert store.find(keys_of(*range(LAST + 1))) == 0
    with pytest.raises(StoreError, match=r"writing a block"):
        write(store, *range(LAST + 1))


def test_a_store_that_is_not_there_is_bypassed(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = make_object_store(BUCKET)
    with pytest.raises(StoreError):
        store.find(keys_of(*range(LAST + 1)))
    with pytest.raises(StoreError, match="bypassed"):
        write(store, *range(LAST + 1))


def test_http_is_refused_unless_the_environment_allows_it(
    moto: Moto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    with pytest.raises(StoreError):
        make_object_store(BUCKET).find(keys_of(*range(LAST + 1)))
    assert moto.num_requests == 1  # the one that made the bucket
