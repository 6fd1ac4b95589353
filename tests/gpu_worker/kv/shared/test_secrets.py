"""The key and the password of a shared store are in files that others cannot read."""

import os
import stat
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

from signalbox_worker.kv.shared.block_names import BlockNames
from signalbox_worker.kv.shared.secret_files import SecretFileError, read_key, read_password
from tests.gpu_worker.kv.shared.redis_servers import IDENTITY, write_secret


def test_a_key_and_a_password_are_read(tmp_path: Path) -> None:
    assert read_key(write_secret(tmp_path / "key", b"\0\n" * 16)) == b"\0\n" * 16
    assert read_password(write_secret(tmp_path / "password", "Grüße!\n".encode())) == "Grüße!"


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "0 bytes"), (b"s" * 31, "at least 32"), (b"s" * 5000, "more than 4096")],
)
def test_a_key_of_another_size_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(SecretFileError, match=message):
        read_key(write_secret(tmp_path / "key", content))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_file_that_others_may_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = write_secret(tmp_path / "key", b"s" * 32)
    path.chmod(mode)
    for reading in (read_key, read_password):
        with pytest.raises(SecretFileError, match="chmod 600") as caught:
            reading(path)
        assert "sss" not in str(caught.value)


@pytest.mark.parametrize(("mode", "is_taken"), [(0o440, True), (0o444, False), (0o460, False)])
def test_a_secret_of_kubernetes_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, is_taken: bool
) -> None:
    """It belongs to root, and to the group of the pod."""
    path = write_secret(tmp_path / "key", b"s" * 32)
    status = SimpleNamespace(st_uid=0, st_mode=stat.S_IFREG | mode)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", lambda fd: status)
    with nullcontext() if is_taken else pytest.raises(SecretFileError, match="chmod 600"):
        assert read_key(path) == b"s" * 32


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecretFileError, match="No such file"):
        read_key(tmp_path / "key")
    with pytest.raises(SecretFileError, match="is empty"):
        read_password(write_secret(tmp_path / "password", b"\n"))
    with pytest.raises(SecretFileError, match="no UTF-8"):
        read_password(write_secret(tmp_path / "password", b"\xff"))


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    for path in (pipe, tmp_path):
        with pytest.raises(SecretFileError, match="is no regular file"):
            read_key(path)
    link = tmp_path / "link"
    link.symlink_to(write_secret(tmp_path / "key", b"s" * 32))
    assert read_key(link) == b"s" * 32, "Kubernetes mounts secrets as links"


def test_a_name_says_nothing_without_the_key() -> None:
    secrets = (b"a" * 32, b"b" * 32, b"")
    names = [BlockNames(secret, identity=IDENTITY) for secret in secrets]
    assert len({one.block(b"k" * 16) for one in names}) == 3
    assert len({one.tenant(b"t") for one in names}) == 3
    assert len({one.group for one in names}) == 3
