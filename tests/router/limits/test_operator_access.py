"""Which clients are taken for operators."""

import hashlib
from pathlib import Path

import pytest

from signalbox_contract.errors import PermissionDenied, Unauthenticated
from signalbox_router.limits.api_keys import KeyRing
from signalbox_router.limits.operator_access import OperatorAccess

PAGE = [("host", "localhost:8000"), ("origin", "http://localhost:8000")]


def make_keys(path: Path) -> KeyRing:
    """Returns a ring with an operator's key, a client's and one that the command line has."""
    digest = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("boss", "alice")}
    entries = [
        f'- {{name: boss, sha256: "{digest["boss"]}", operator: true}}',
        f'- {{name: alice, sha256: "{digest["alice"]}"}}',
    ]
    path.write_text("\n".join(entries))
    return KeyRing(str(path), digests=[hashlib.sha256(b"plain").digest()])


def shown(key: str) -> list[tuple[str, str | bytes]]:
    return [("authorization", f"Bearer {key}")]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_where_there_are_keys_an_operators_is_needed(host: str, tmp_path: Path) -> None:
    access = OperatorAccess(make_keys(tmp_path / "keys.yaml"), host=host)
    access.check(shown("boss"))
    access.check([*shown("boss"), *PAGE])
    for key in ("alice", "plain"):
        with pytest.raises(PermissionDenied, match=r"no operator's.*--api-keys.*--operator"):
            access.check(shown(key))
    for metadata in ([], shown("unknown")):
        with pytest.raises(Unauthenticated):
            access.check(metadata)


@pytest.mark.parametrize(
    ("host", "is_open"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_without_keys_a_loopback_port_alone_is_open(host: str, is_open: bool) -> None:
    access = OperatorAccess(None, host=host)
    if is_open:
        access.check([])
        access.check(PAGE)
    else:
        with pytest.raises(PermissionDenied, match=r"--api-keys .*--operator.*loopback --host"):
            access.check([])


@pytest.mark.parametrize("origin", [b"https://example.org", b"http://localhost:9000", b"null", b""])
@pytest.mark.parametrize("has_keys", [True, False])
def test_pages_of_other_origins_are_refused(origin: bytes, has_keys: bool, tmp_path: Path) -> None:
    keys = make_keys(tmp_path / "keys.yaml") if has_keys else None
    access = OperatorAccess(keys, host="127.0.0.1")
    with pytest.raises(PermissionDenied, match="--allowed-origins is for inference alone"):
        access.check([*shown("boss"), ("Host", b"localhost:8000"), ("Origin", origin)])


def test_operator_is_true_or_false(tmp_path: Path) -> None:
    digest = hashlib.sha256(b"boss").hexdigest()
    path = tmp_path / "keys.yaml"
    path.write_text(f'- {{name: boss, sha256: "{digest}", operator: "yes"}}')
    with pytest.raises(ValueError, match="operator of boss is a str; it must be true or false"):
        KeyRing(str(path))
