"""Sealed blocks: unreadable without the key, and opened only as what they were sealed."""

import os
from collections.abc import Iterator

import pytest

pytest.importorskip("cryptography", reason="cryptography is not installed")

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand

from signalbox_worker.kv.shared.block_names import derived_key, expanded_key
from signalbox_worker.kv.shared.block_seal import HEADER_BYTES, BlockSeal, Sealed, tenant_in
from tests.gpu_worker.kv.shared.redis_servers import IDENTITY, SECRET

BLOCK_BYTES = 96
KEY = b"k" * 16
DATA = bytes(range(BLOCK_BYTES))


def make(secret: bytes = SECRET, *, identity: bytes = IDENTITY) -> BlockSeal:
    return BlockSeal(secret, identity=identity, block_bytes=BLOCK_BYTES)


def sealed(seal: BlockSeal, *, key: bytes = KEY, tenant: bytes = b"t") -> bytes:
    return bytes(seal.seal(key, memoryview(DATA), tenant))


def opened(seal: BlockSeal, block: Sealed, *, key: bytes = KEY) -> bytes | None:
    into = bytearray(BLOCK_BYTES)
    return bytes(into) if seal.open(key, block, memoryview(into)) else None


def flipped(block: bytes) -> Iterator[bytes]:
    """Yields the block with each of its bits changed."""
    for bit in range(8 * len(block)):
        changed = bytearray(block)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


@pytest.mark.parametrize("secret", [SECRET, b""])
def test_what_was_sealed_opens_for_all_who_have_the_key(secret: bytes) -> None:
    block = sealed(make(secret))
    assert len(block) == make(secret).sealed_bytes
    assert opened(make(secret), block) == DATA


def test_a_larger_buffer_is_filled_as_far_as_the_block_goes() -> None:
    """Buffers of threads end with their page."""
    seal, data = make(), DATA + b"more"
    into = bytearray(len(data))
    assert seal.open(KEY, seal.seal(KEY, memoryview(data), b"t"), memoryview(into))
    assert into == DATA + bytes(4)


def test_nothing_of_a_block_can_be_read_without_the_key() -> None:
    block = sealed(make())
    assert not [at for at in range(BLOCK_BYTES - 7) if DATA[at : at + 8] in block]
    assert DATA in sealed(make(b""))  # so that the test would see it


def test_a_block_is_never_encrypted_twice_alike() -> None:
    """With one nonce the differences of two blocks could be read."""
    blocks = [sealed(make())[HEADER_BYTES:] for _ in range(100)]
    assert len(set(blocks)) == 100
    assert len({block[:12] for block in blocks}) == 100


@pytest.mark.parametrize("secret", [SECRET, b""])
def test_a_block_with_a_changed_bit_does_not_open(secret: bytes) -> None:
    seal = make(secret)
    assert not [one for one in flipped(sealed(seal)) if opened(seal, one) is not None]


@pytest.mark.parametrize("secret", [SECRET, b""])
def test_a_block_of_another_length_does_not_open(secret: bytes) -> None:
    seal, block = make(secret), sealed(make(secret))
    for length in range(len(block)):
        assert opened(seal, block[:length]) is None
    for more in (b"\0", block[-1:], block):
        assert opened(seal, block + more) is None


def test_a_block_opens_under_no_other_key_model_rank_tenant_or_secret() -> None:
    seal, block = make(), sealed(make())
    other_tenant = sealed(seal, tenant=b"u")
    assert opened(seal, block, key=b"l" * 16) is None
    assert opened(make(identity=b"\x08" * 32), block) is None
    assert opened(seal, other_tenant[:HEADER_BYTES] + block[HEADER_BYTES:]) is None
    for secret in (b"z" * 32, b""):
        assert opened(make(secret), block) is None
        assert opened(seal, sealed(make(secret))) is None
    assert opened(seal, block) == DATA


def test_a_checksum_of_somebody_without_the_key_does_not_open() -> None:
    """It is cut, or filled up, to the length of an encrypted block."""
    seal, checked = make(), sealed(make(b""))
    num_bytes = seal.sealed_bytes
    for forged in (checked[:num_bytes], checked[-num_bytes:], os.urandom(num_bytes)):
        assert opened(seal, forged.ljust(num_bytes, b"\0")) is None


def test_a_header_names_the_tenant_to_those_who_have_the_key() -> None:
    seal = make()
    assert tenant_in(sealed(seal)) == seal.names.tenant(b"t")
    assert tenant_in(sealed(seal, tenant=b"u")) == seal.names.tenant(b"u")
    assert tenant_in(sealed(seal)) != make(b"z" * 32).names.tenant(b"t")


@pytest.mark.parametrize("secret", [b"", b"s" * 32, bytes(range(200))], ids=len)
def test_keys_are_those_of_hkdf(secret: bytes) -> None:
    purpose = b"blocks"
    hkdf = HKDF(algorithm=SHA256(), length=32, salt=b"signalbox KV store 2", info=purpose)
    assert derived_key(secret, purpose) == hkdf.derive(secret)
    expand = HKDFExpand(algorithm=SHA256(), length=32, info=purpose)
    assert expanded_key(b"p" * 32, purpose) == expand.derive(b"p" * 32)


def test_each_purpose_and_each_block_has_a_key_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from signalbox_worker.kv.shared import block_cipher

    used: list[bytes] = []
    real = block_cipher.AESGCM

    def noted(key: bytes) -> block_cipher.AESGCM:
        used.append(key)
        return real(key)

    monkeypatch.setattr(block_cipher, "AESGCM", noted)
    for seal in (make(), make(identity=b"\x08" * 32), make(b"z" * 32)):
        for number in range(20):
            sealed(seal, key=bytes([number]) * 16)
    purposes = (b"names", b"tenants", b"models", b"blocks")
    keys = [*used, *(derived_key(SECRET, purpose) for purpose in purposes), SECRET]
    assert len(used) == 60
    assert len(set(keys)) == len(keys)
