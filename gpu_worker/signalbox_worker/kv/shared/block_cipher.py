"""Encrypts blocks with AES-256-GCM, which also proves that they are what was encrypted.

Each block has a key of its own, which HKDF expands from what the block is. A nonce is random, and
two that are equal matter under one key alone: the bound of 2^32 nonces is one of writes of the same
block.
"""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from signalbox_worker.kv.shared.block_names import expanded_key

if not hasattr(AESGCM, "decrypt_into"):
    raise ImportError("it encrypts into no buffer", name="cryptography")

_NONCE_BYTES = 12
_TAG_BYTES = 16


class BlockCipher:
    """Satisfies `BlockGuard`; `key` has 32 bytes."""

    added_bytes = _NONCE_BYTES + _TAG_BYTES

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, data: memoryview, covered: bytes, into: memoryview) -> None:
        nonce = os.urandom(_NONCE_BYTES)
        into[:_NONCE_BYTES] = nonce
        self._of(covered).encrypt_into(nonce, data, covered, into[_NONCE_BYTES:])

    def open(self, sealed: memoryview, covered: bytes, into: memoryview) -> bool:
        nonce, encrypted = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            self._of(covered).decrypt_into(nonce, encrypted, covered, into)
        except InvalidTag:
            return False
        return True

    def _of(self, covered: bytes) -> AESGCM:
        return AESGCM(expanded_key(self._key, covered))
