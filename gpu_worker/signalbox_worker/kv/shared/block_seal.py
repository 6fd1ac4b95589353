"""Seals blocks for a store where others may read and write.

With a secret, which the workers alone have, a block is encrypted: the store cannot read it, and one
that was changed, cut off, or returned under another name does not open. The store can withhold a
block, and return an old one of the same name, whose bytes are as good: the name covers model,
tokens, tenant, salt and adapter. Without a secret a block has a checksum, which finds damage, and
proves nothing against a client that may write to the store.
"""

import hashlib
import hmac
from typing import Protocol

from signalbox_worker.kv.shared.block_names import TENANT_BYTES, BlockNames, derived_key

_MAGIC = b"SBKV0002"
HEADER_BYTES = len(_MAGIC) + TENANT_BYTES

Sealed = bytes | bytearray


class BlockGuard(Protocol):
    """Writes a block's bytes so that only what was written opens again."""

    @property
    def added_bytes(self) -> int: ...

    def seal(self, data: memoryview, covered: bytes, into: memoryview) -> None:
        """Writes what is stored, `added_bytes` more than `data`.

        Args:
            covered: what the block is; it opens with the same alone.
        """
        ...

    def open(self, sealed: memoryview, covered: bytes, into: memoryview) -> bool:
        """Returns False, with anything in `into`, if this was not sealed with `covered`."""
        ...


class BlockSeal:
    """Seals and opens the blocks of one model.

    Args:
        secret: empty for none.
        identity: digest of all that a block's bytes depend on beside its key, the shard included.
    """

    def __init__(self, secret: bytes, *, identity: bytes, block_bytes: int) -> None:
        """Raises ImportError if there is a secret, and no library that encrypts."""
        self.names = BlockNames(secret, identity=identity)
        self.block_bytes = block_bytes
        self._identity = identity
        self._guard = _encrypting(secret) if secret else _Checksum()
        self.sealed_bytes = HEADER_BYTES + block_bytes + self._guard.added_bytes

    def seal(self, key: bytes, data: memoryview, tenant: bytes) -> bytearray:
        """Returns what is stored of a block."""
        sealed = bytearray(self.sealed_bytes)
        sealed[:HEADER_BYTES] = header = _MAGIC + self.names.tenant(tenant)
        covered = self._covered(header, key)
        self._guard.seal(data[: self.block_bytes], covered, memoryview(sealed)[HEADER_BYTES:])
        return sealed

    def open(self, key: bytes, sealed: Sealed, into: memoryview) -> bool:
        """Writes the bytes of a block that was sealed under this key by someone with the secret.

        Returns False, with anything in `into`, if it was not.
        """
        if len(sealed) != self.sealed_bytes:
            return False
        covered = self._covered(sealed[:HEADER_BYTES], key)
        return self._guard.open(
            memoryview(sealed)[HEADER_BYTES:], covered, into[: self.block_bytes]
        )

    def _covered(self, header: Sealed, key: bytes) -> bytes:
        return bytes(header) + self._identity + key  # each has a fixed length


class _Checksum:
    added_bytes = hashlib.sha256().digest_size

    def seal(self, data: memoryview, covered: bytes, into: memoryview) -> None:
        into[: len(data)] = data
        into[len(data) :] = _digest(covered, data)

    def open(self, sealed: memoryview, covered: bytes, into: memoryview) -> bool:
        into[:] = sealed[: len(into)]
        return hmac.compare_digest(sealed[len(into) :], _digest(covered, into))


def _digest(covered: bytes, data: memoryview) -> bytes:
    digest = hashlib.sha256(covered)
    digest.update(data)
    return digest.digest()


def _encrypting(secret: bytes) -> BlockGuard:
    from signalbox_worker.kv.shared.block_cipher import (
        BlockCipher,  # an extra brings what it imports
    )

    return BlockCipher(derived_key(secret, b"blocks"))


def tenant_in(sealed: Sealed) -> bytes:
    """Returns the name of the tenant whose block this is; not verified."""
    return bytes(sealed[len(_MAGIC) : HEADER_BYTES])
