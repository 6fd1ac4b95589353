"""Certificates with names that no honest authority should sign, for the tests of roles."""

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtensionOID, NameOID

from signalbox_rpc.transport.tls import TlsConfig
from tests.rpc.certificates import Authority

EMAIL, DNS, URI, IP = 0x81, 0x82, 0x86, 0x87
"""Tags of GeneralName (RFC 5280, 4.2.1.6)."""
VALID = datetime.timedelta(days=1)


def member(
    authority: Authority, folder: Path, *names: tuple[int, bytes], common_name: str = ""
) -> TlsConfig:
    """Returns what a client with a certificate of these alternative names, as bytes, is given."""
    key = ec.generate_private_key(ec.SECP256R1())
    signer = serialization.load_pem_private_key(authority.key_pem, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name or "x")]))
        .issuer_name(x509.load_pem_x509_certificate(Path(authority.file).read_bytes()).subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
    )
    if names:
        value = x509.UnrecognizedExtension(ExtensionOID.SUBJECT_ALTERNATIVE_NAME, _sequence(names))
        builder = builder.add_extension(value, critical=False)
    cert_file, key_file = folder / "odd.pem", folder / "odd.key"
    certificate = builder.sign(signer, hashes.SHA256())
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return TlsConfig(cert=str(cert_file), key=str(key_file), ca=authority.file)


def _sequence(names: tuple[tuple[int, bytes], ...]) -> bytes:
    return _value(0x30, b"".join(_value(tag, name) for tag, name in names))


def _value(tag: int, content: bytes) -> bytes:
    """Returns a value of DER, with the short or the long form of its length."""
    size = len(content)
    num_bytes = -(-size.bit_length() // 8)
    long_form = bytes([0x80 + num_bytes]) + size.to_bytes(num_bytes, "big")
    return bytes([tag]) + (bytes([size]) if size < 0x80 else long_form) + content
