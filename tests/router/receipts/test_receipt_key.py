"""Keys of receipts, in files as openssl writes them."""

from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from signalbox_router.receipts.receipt_key import (
    ReceiptKey,
    ReceiptKeyError,
    WrongSignature,
    check_signature,
    read_public_key,
)

CONTENT = b'{"form":1}'


def write_key(path: Path, key: Any = None, *, password: bytes | None = None) -> Path:
    """Writes a private key, and beside it the public one, with the suffix .pub."""
    key = key or ed25519.Ed25519PrivateKey.generate()
    how = BestAvailableEncryption(password) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how))
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.with_suffix(".pub").write_bytes(public)
    return path


def test_a_signature_is_of_one_content_and_one_key(tmp_path: Path) -> None:
    path, other = write_key(tmp_path / "key"), write_key(tmp_path / "other")
    signature = ReceiptKey(str(path)).sign(CONTENT)
    public = read_public_key(str(path.with_suffix(".pub")))
    named = check_signature(signature, CONTENT, public_key=None)
    assert check_signature(signature, CONTENT, public_key=public) == named
    with pytest.raises(WrongSignature, match="the key that it names"):
        check_signature(signature, CONTENT + b" ", public_key=None)
    with pytest.raises(WrongSignature, match="the given key"):
        others = read_public_key(str(other.with_suffix(".pub")))
        check_signature(signature, CONTENT, public_key=others)


@pytest.mark.parametrize(
    "changes",
    [{"value": "AAAA"}, {"value": "?"}, {"value": None}, {"public_key": 5}, {"algorithm": "rsa"}],
    ids=str,
)
def test_a_signature_that_is_none_is_wrong(tmp_path: Path, changes: dict[str, Any]) -> None:
    signature: dict[str, Any] = {**ReceiptKey(str(write_key(tmp_path / "key"))).sign(CONTENT)}
    with pytest.raises(WrongSignature):
        check_signature(signature | changes, CONTENT, public_key=None)
    with pytest.raises(WrongSignature):
        check_signature("signed", CONTENT, public_key=None)


def test_what_is_no_key_is_refused_with_the_command_that_makes_one(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no key")
    curve = write_key(tmp_path / "curve", ec.generate_private_key(ec.SECP256R1()))
    locked = write_key(tmp_path / "locked", password=b"secret")
    for path in (text, curve, locked, curve.with_suffix(".pub")):
        with pytest.raises(ReceiptKeyError, match="openssl genpkey -algorithm ed25519"):
            ReceiptKey(str(path))
    for path in (text, curve.with_suffix(".pub"), curve):
        with pytest.raises(ReceiptKeyError, match="openssl pkey -in KEY -pubout"):
            read_public_key(str(path))
    with pytest.raises(ReceiptKeyError, match="cannot be read: No such file"):
        ReceiptKey(str(tmp_path / "none"))
