"""Signatures of receipts: Ed25519, by a key in a PEM file as openssl makes it."""

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ALGORITHM = "ed25519"
_NEEDS = "needs the package cryptography: pip install 'signalbox-serving[receipts]'"


class ReceiptKeyError(ValueError):
    """A key cannot be used; the message names the file and the remedy."""


class WrongSignature(ValueError):
    """A signature does not fit the document, or was made with another key."""


class ReceiptKey:
    """The private key of a router."""

    def __init__(self, path: str) -> None:
        """Reads the key. Raises ReceiptKeyError."""
        self._key = _private_key(path)
        self._public = public_bytes(self._key.public_key())

    def sign(self, content: bytes) -> dict[str, str]:
        """Returns the signature as part of a document."""
        return {
            "algorithm": ALGORITHM,
            "public_key": _text(self._public),
            "value": _text(self._key.sign(content)),
        }


def check_signature(signature: object, content: bytes, *, public_key: bytes | None) -> str:
    """Returns the public key, in base64. Raises WrongSignature, or ReceiptKeyError without the
    package.

    Args:
        signature: part of the document.
        public_key: key that must have signed; None takes the one that the signature names.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise ReceiptKeyError(f"a signed receipt {_NEEDS}") from None
    try:
        if not isinstance(signature, dict) or signature["algorithm"] != ALGORITHM:
            raise WrongSignature(f"the signature is not of the algorithm {ALGORITHM}")
        named, value = (_bytes(signature[name]) for name in ("public_key", "value"))
        Ed25519PublicKey.from_public_bytes(public_key or named).verify(value, content)
    except (InvalidSignature, KeyError, ValueError, TypeError) as error:
        if isinstance(error, WrongSignature):
            raise
        by = "the given key" if public_key else "the key that it names"
        raise WrongSignature(f"the receipt was changed, or was not signed with {by}") from None
    return _text(public_key or named)


def read_public_key(path: str) -> bytes:
    """Returns the bytes of a public key in a PEM file. Raises ReceiptKeyError."""
    what = f"--public-key {path}"
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise ReceiptKeyError(f"--public-key {_NEEDS}") from None
    content = _read(what, path)
    try:
        key = load_pem_public_key(content)
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        remedy = f"openssl pkey -in KEY -pubout -out {path}"
        raise ReceiptKeyError(
            f"{what} is not a public key of {ALGORITHM} in PEM; {remedy} writes one"
        )
    return public_bytes(key)


def public_bytes(key: Any) -> bytes:
    """Returns the 32 bytes of a public key."""
    raw: bytes = key.public_bytes_raw()
    return raw


def _private_key(path: str) -> "Ed25519PrivateKey":
    what = f"--receipt-key {path}"
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise ReceiptKeyError(f"--receipt-key {_NEEDS}") from None
    content = _read(what, path)
    try:
        key = load_pem_private_key(content, password=None)
    except (ValueError, TypeError):  # TypeError: it has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        remedy = f"openssl genpkey -algorithm {ALGORITHM} -out {path}"
        raise ReceiptKeyError(
            f"{what} is not a private key of {ALGORITHM} in PEM without a password; {remedy} makes"
            " one"
        )
    return key


def _read(what: str, path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes()
    except OSError as error:
        raise ReceiptKeyError(f"{what} cannot be read: {error.strerror}") from None


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: object) -> bytes:
    return base64.b64decode(str(text), validate=True)
