"""Reads the complete DNS names of an X.509 certificate from its bytes (RFC 5280, 4.2.1.6).

gRPC passes a name on as a C string: it cuts "router\\0.evil.example" to "router". OpenSSL has
verified the certificate before, so the bytes are well-formed DER (X.690), or there are no names.
"""

import ssl
from collections.abc import Iterator
from functools import lru_cache

_SEQUENCE, _OCTET_STRING, _OBJECT_IDENTIFIER = 0x30, 0x04, 0x06
_EXTENSIONS = 0xA3
"""Tag [3] of TBSCertificate."""
_DNS_NAME = 0x82
"""Tag [2] of GeneralName."""
_SUBJECT_ALTERNATIVE_NAME = bytes([0x55, 0x1D, 0x11])
"""Object identifier 2.5.29.17."""
_LONG_LENGTH = 0x80


@lru_cache(maxsize=256)
def dns_names(pem: bytes) -> frozenset[bytes]:
    """Returns the certificate's DNS names, none if it cannot be read."""
    try:
        return frozenset(_dns_names(ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))))
    except ValueError:
        return frozenset()


def _dns_names(certificate: bytes) -> Iterator[bytes]:
    to_be_signed = _inner(_inner(certificate, _SEQUENCE), _SEQUENCE)
    for tag, wrapped in _values(to_be_signed):
        if tag == _EXTENSIONS:
            for _, extension in _values(_inner(wrapped, _SEQUENCE)):
                yield from _names_in(extension)


def _names_in(extension: bytes) -> Iterator[bytes]:
    """Yields the DNS names of one extension: an identifier, a critical flag and a value."""
    if _inner(extension, _OBJECT_IDENTIFIER) != _SUBJECT_ALTERNATIVE_NAME:
        return
    for tag, value in _values(extension):
        if tag == _OCTET_STRING:
            names = _values(_inner(value, _SEQUENCE))
            yield from (name for kind, name in names if kind == _DNS_NAME)


def _inner(data: bytes, tag: int) -> bytes:
    """Returns the first value of `data`, which must have the tag. Raises ValueError."""
    found, value = next(_values(data), (None, b""))
    if found != tag:
        raise ValueError(f"tag {found} instead of {tag}")
    return value


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields the tag and the content of each value in `data`. Raises ValueError."""
    start = 0
    while start < len(data):
        header = data[start : start + 2]
        if len(header) < 2:
            raise ValueError("a value ends in its header")
        tag, length = header
        start += 2
        if length >= _LONG_LENGTH:
            num_bytes = length - _LONG_LENGTH
            length = int.from_bytes(data[start : start + num_bytes], "big")
            start += num_bytes
        if start + length > len(data):
            raise ValueError("a value is longer than what holds it")
        yield tag, data[start : start + length]
        start += length
