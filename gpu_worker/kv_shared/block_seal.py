"""Names and seals of blocks where others may write: both are keyed hashes.

The secret is the workers' alone. A store that changes a block, cuts it off, or returns it under
another name cannot make its tag, nor can it tell from a name which tokens or tenant it is of. It
can withhold a block, and return an old one of the same name, whose bytes are as good: the name
covers model, tokens, tenant, salt and adapter. Without a secret the hashes are checksums, and prove
nothing against someone who may write to the store.
"""

import hmac

TAG_BYTES = 32
NAME_BYTES = 16
TENANT_BYTES = 16
_MAGIC = b"SBKV0001"
HEADER_BYTES = len(_MAGIC) + TENANT_BYTES + TAG_BYTES


class BlockSeal:
    """Of the blocks of one model.

    Args:
        secret: the key; empty for none.
        identity: digest of all that a block's bytes depend on beside its key, the rank included.
    """

    def __init__(self, secret: bytes, *, identity: bytes, block_bytes: int) -> None:
        self._identity = identity
        self.block_bytes = block_bytes
        self.sealed_bytes = HEADER_BYTES + block_bytes
        self._name_key = _derived(secret, "names")
        self._tenant_key = _derived(secret, "tenants")
        self._tag_key = _derived(secret, "blocks")
        self.group = _hash(_derived(secret, "models"), identity)[:NAME_BYTES].hex()
        """Name of the model in the store."""

    def name(self, key: bytes) -> bytes:
        """Returns the name of a block in the store, 16 bytes."""
        return _hash(self._name_key, self._identity + key)[:NAME_BYTES]

    def tenant(self, tenant: bytes) -> bytes:
        """Returns the name of a tenant in the store, 16 bytes."""
        return _hash(self._tenant_key, tenant)[:TENANT_BYTES]

    def seal(self, key: bytes, data: memoryview, tenant: bytes) -> bytes:
        """Returns what is stored before a block's bytes.

        Args:
            tenant: as `tenant` names it.
        """
        head = _MAGIC + tenant
        return head + self._tag(head, key, data)

    def is_intact(self, key: bytes, header: bytes, data: memoryview) -> bool:
        """Returns whether these bytes were sealed under this key, by someone with the secret."""
        head, tag = header[:-TAG_BYTES], header[-TAG_BYTES:]
        is_ours = len(header) == HEADER_BYTES and header.startswith(_MAGIC)
        return is_ours and hmac.compare_digest(tag, self._tag(head, key, data))

    def _tag(self, head: bytes, key: bytes, data: memoryview) -> bytes:
        # All parts but the last have fixed lengths.
        mac = hmac.new(self._tag_key, head + self._identity + key, "sha256")
        mac.update(data[: self.block_bytes])
        return mac.digest()


def tenant_in(header: bytes) -> bytes:
    """Returns the name of the tenant whose block has this header; not verified."""
    return header[len(_MAGIC) : len(_MAGIC) + TENANT_BYTES]


def _derived(secret: bytes, purpose: str) -> bytes:
    return _hash(secret, b"signalbox KV store 1: " + purpose.encode())


def _hash(key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, "sha256")
