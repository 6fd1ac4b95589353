"""Names of blocks, tenants and models in a shared store: keyed hashes, and the keys that make them.

The secret is the workers' alone, so that a name does not tell which tokens, tenant or model it is
of. Without a secret anyone can compute the names.
"""

import hmac

NAME_BYTES = 16
TENANT_BYTES = 16
_SALT = b"signalbox KV store 2"
"""Changes with the format: blocks of another one are not found."""


class BlockNames:
    """Makes the names of one model's blocks.

    Args:
        secret: empty for none.
        identity: digest of all that a block's bytes depend on beside its key, the shard included.
    """

    def __init__(self, secret: bytes, *, identity: bytes) -> None:
        self._identity = identity
        self._block_key = derived_key(secret, b"names")
        self._tenant_key = derived_key(secret, b"tenants")
        self.group = _hash(derived_key(secret, b"models"), identity)[:NAME_BYTES].hex()
        """Name of the model in the store."""

    def block(self, key: bytes) -> bytes:
        """Returns the name of a block, 16 bytes."""
        return _hash(self._block_key, self._identity + key)[:NAME_BYTES]

    def tenant(self, tenant: bytes) -> bytes:
        """Returns the name of a tenant, 16 bytes."""
        return _hash(self._tenant_key, tenant)[:TENANT_BYTES]


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Returns the key for one purpose, 32 bytes: HKDF with SHA-256 (RFC 5869)."""
    return expanded_key(_hash(_SALT, secret), purpose)


def expanded_key(key: bytes, info: bytes) -> bytes:
    """Returns the key that HKDF expands from a random one, 32 bytes."""
    return _hash(key, info + b"\1")


def _hash(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
