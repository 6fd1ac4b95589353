"""The tier opens beside the steps, and a worker starts whatever its server does."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.kv.shared.shared_tier import SharedTier, check_config
from signalbox_worker.kv.store.block_store import StoreError
from signalbox_worker.kv.store_config import SharedConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.kv.shared.redis_servers import (
    BLOCK_BYTES,
    IDENTITY,
    SECRET,
    data_of,
    held,
    hides,
    make_store,
    needs_redis,
    patient,
    redis,
    write_secret,
)
from tests.gpu_worker.kv.store.stores import key_of, keys_of
from tests.ports import free_port
from tests.waiting import EVENT_S, wait_until

Digests = MutableMapping[str, str]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)


def identify(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
    return IDENTITY


@contextmanager
def opened(
    path: Path, url: str, how: Callable[[Digests, Callable[[], bool]], bytes] = identify
) -> Iterator[SharedTier]:
    """Yields a tier; afterwards none of its threads is left."""
    key = write_secret(path / "key", SECRET)
    config = SharedConfig(kv_store=url, kv_store_key=key)
    tier = SharedTier(config, block_bytes=BLOCK_BYTES)
    tier.start(how)
    try:
        yield tier
    finally:
        tier.close()
        tier._thread.join(EVENT_S)
        assert not tier._thread.is_alive()
        assert not [one for one in threading.enumerate() if one.name.startswith("kv-")]


@pytest.mark.system
@needs_redis
def test_what_a_tier_writes_is_a_block_of_the_store(tmp_path: Path) -> None:
    with redis() as server, opened(tmp_path, server.url) as tier:
        assert tier.opened.wait(EVENT_S)
        assert tier.write(key_of(1), memoryview(data_of(1)), b"t")
        assert tier.find(keys_of(1, 2)) == 1
        assert held(make_store(server), range(3)) == {1}


_WRITER = """
import sys
from pathlib import Path

from signalbox_worker.kv.store_config import SharedConfig
from signalbox_worker.kv.shared.shared_tier import SharedTier
from tests.gpu_worker.kv.shared.redis_servers import BLOCK_BYTES, IDENTITY, write

config = SharedConfig(kv_store=sys.argv[1], kv_store_key=Path(sys.argv[2]))
tier = SharedTier(config, block_bytes=BLOCK_BYTES)
tier.start(lambda *_: IDENTITY)
assert tier.opened.wait(60)
assert write(tier, 1, 2) == [True, True]
tier.close()
"""


@pytest.mark.system
@needs_redis
def test_a_process_with_the_key_reads_what_another_has_encrypted(tmp_path: Path) -> None:
    with redis() as server, opened(tmp_path, server.url) as tier:
        subprocess.run(
            [sys.executable, "-c", _WRITER, server.url, tmp_path / "key"],
            check=True,
            timeout=EVENT_S,
        )
        assert tier.opened.wait(EVENT_S)
        assert tier.find(keys_of(1, 2, 3)) == 2
        assert held(tier, range(4)) == {1, 2}
        assert hides(b"".join(map(server.get, server.keys())), 1, 2)
        assert tier.usage().num_failed == 0


@pytest.mark.system
@needs_redis
def test_a_clear_before_the_weights_are_known_is_made_then(tmp_path: Path) -> None:
    known = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        assert known.wait(EVENT_S)
        return IDENTITY

    with redis() as server:
        assert make_store(server).write(key_of(1), memoryview(data_of(1)), b"t")
        with opened(tmp_path, server.url, identify_late) as tier, clearing(tier) as cleared:
            assert tier.find(keys_of(1)) == 0
            assert not cleared.done()  # the scheduler would have no other worker repeat it
            known.set()
            cleared.result(EVENT_S)
            assert tier.find(keys_of(1)) == 0
            assert server.keys() == []


def test_a_tier_says_that_it_opens_and_that_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        assert known.wait(EVENT_S)
        return IDENTITY

    caplog.set_level("INFO")
    with opened(tmp_path, f"redis://127.0.0.1:{free_port()}", identify_late) as tier:
        assert not tier.usage().is_open
        assert "shared tier of KV blocks: opening; it finds and keeps nothing until" in caplog.text
        assert "open after" not in caplog.text
        known.set()
        assert tier.opened.wait(EVENT_S)
        assert tier.usage().is_open
        assert "shared tier of KV blocks: open after" in caplog.text


def test_a_worker_starts_without_its_server_and_remembers_a_clear(tmp_path: Path) -> None:
    known = threading.Event()

    def identify_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        assert known.wait(EVENT_S)
        return IDENTITY

    with opened(tmp_path, f"redis://127.0.0.1:{free_port()}", identify_late) as tier:
        with clearing(tier) as cleared:
            known.set()
            with pytest.raises(StoreError, match="has not ended"):
                cleared.result(EVENT_S)
        with pytest.raises(StoreError, match="has not ended"):
            tier.find(keys_of(1))
        assert tier.usage().num_failed == 1


def test_a_clear_fails_if_the_tier_does_not_open(tmp_path: Path) -> None:
    failing = threading.Event()

    def fail_late(digests: Digests, is_called_off: Callable[[], bool]) -> bytes:
        assert failing.wait(EVENT_S)
        raise ValueError("the weights have changed")

    url = f"redis://127.0.0.1:{free_port()}"
    with opened(tmp_path, url, fail_late) as tier, clearing(tier) as cleared:
        failing.set()
        with pytest.raises(StoreError, match="not open"):
            cleared.result(EVENT_S)


@contextmanager
def clearing(tier: SharedTier) -> Iterator[Future[None]]:
    """Yields the end of a clear that has come before the tier is open."""
    with ThreadPoolExecutor(1) as pool:
        cleared = pool.submit(tier.clear, None)
        wait_until(lambda: tier._clears)
        yield cleared


URL = "redis://127.0.0.1"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SharedConfig(kv_store=URL, kv_store_key=Path("none")), "key none .*No such file"),
        (SharedConfig(kv_store=URL, kv_store_password=Path("none")), "word none .*No such file"),
        (
            SharedConfig(kv_store="rediss://127.0.0.1?ssl_ca_certs=none.pem"),
            r"TLS cannot use none\.pem: .*No such file",
        ),
    ],
)
def test_files_are_checked_before_a_model_is_loaded(config: SharedConfig, message: str) -> None:
    model, device = ModelConfig(model="nowhere"), DeviceConfig(device="cpu")
    with pytest.raises(ValueError, match=message):
        make_runner(RunnerConfig(model=model, cache=CacheConfig(), device=device, shared=config))


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    tmp_path.chmod(0o755)
    with pytest.raises(ValueError, match="mode 700"):
        check_config(SharedConfig(kv_store=f"file://{tmp_path}"))


def test_a_store_of_objects_without_its_client_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "signalbox_worker.kv.shared.object_server", raising=False)
    with pytest.raises(ModelError, match=r"\[kv-store\]"):
        check_config(SharedConfig(kv_store=f"file://{tmp_path}"))


@pytest.mark.parametrize("module", [None, SimpleNamespace(AESGCM=object)])
def test_a_key_without_a_package_that_encrypts_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: SimpleNamespace | None
) -> None:
    """It is not installed, or too old."""
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", module)
    monkeypatch.delitem(sys.modules, "signalbox_worker.kv.shared.block_cipher", raising=False)
    key = write_secret(tmp_path / "key", SECRET)
    with pytest.raises(ModelError, match=r"key needs cryptography.*\[kv-store\]"):
        check_config(SharedConfig(kv_store=URL, kv_store_key=key))
    check_config(SharedConfig(kv_store=URL))  # which encrypts nothing
