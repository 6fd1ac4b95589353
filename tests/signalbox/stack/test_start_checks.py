"""Files that a stack cannot use are refused before any of its processes starts."""

from pathlib import Path
from typing import Any

import pytest

from gpu_worker.kv_shared.secret_files import SecretFileError
from router.keys.api_keys import KeyFileError
from rpc.transport.tls import TlsError
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack import local_stack
from signalbox.stack.local_stack import LocalStack
from tests.gpu_worker.kv_shared.redis_servers import write_secret


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the processes that a stack starts."""
    names: list[str] = []
    monkeypatch.setattr(local_stack, "start", lambda name, *_, **__: names.append(name))
    return names


def make_stack(**flags: Any) -> LocalStack:
    return LocalStack(ServeSettings.model_validate({"grpc_port": 0, "http_port": 0, **flags}))


@pytest.mark.parametrize(
    ("flags", "error", "named"),
    [
        ({"chat_template": "no-such-template"}, ValueError, "no-such-template"),
        ({"api_keys": "nowhere.yaml"}, KeyFileError, "nowhere.yaml"),
        ({"tls_cert": "nowhere.pem", "tls_key": "nowhere.key"}, TlsError, "nowhere.pem"),
    ],
)
def test_a_file_that_cannot_be_used_starts_nothing(
    flags: dict[str, str], error: type[Exception], named: str, started: list[str]
) -> None:
    with pytest.raises(error, match=named):
        make_stack(simulate=True, **flags).launch()
    assert not started


def test_a_key_of_a_shared_store_that_is_too_short_starts_nothing(
    tmp_path: Path, started: list[str]
) -> None:
    key = write_secret(tmp_path / "key", b"short")
    stack = make_stack(model="nowhere", kv_store="redis://127.0.0.1", kv_store_key=key)
    with pytest.raises(SecretFileError, match="at least 32"):
        stack.launch()
    assert not started


@pytest.mark.parametrize("place", ["missing/kv", "file"])
def test_a_folder_for_blocks_that_cannot_be_one_starts_nothing(
    tmp_path: Path, started: list[str], place: str
) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    (tmp_path / "file").touch()
    for flags in ({"kv_disk": tmp_path / place}, {"kv_store": f"file://{tmp_path / place}"}):
        with pytest.raises(ValueError, match="folder for KV blocks"):
            make_stack(model="nowhere", **flags).launch()
    assert not started
