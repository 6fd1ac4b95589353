"""Names for the content of KV blocks: a chain of hashes over whole blocks of tokens.

A block's K and V depend on every token before them, so its hash covers its own tokens and the hash
of the block before it (as in vLLM's automatic prefix caching). The chain begins with the request's
tenant and cache salt: requests that differ in either find nothing of each other.
"""

import hashlib
from array import array
from collections.abc import Sequence as Tokens

from scheduler_svc.block_allocator import BlockHash

DIGEST_BYTES = 16


def root_hash(*, tenant: str, cache_salt: str) -> BlockHash:
    """Returns what the chain of a tenant's salt begins with."""
    name = tenant.encode()
    salted = len(name).to_bytes(8, "little") + name + cache_salt.encode()
    return hashlib.blake2b(salted, digest_size=DIGEST_BYTES, person=b"root").digest()


def next_hash(previous: BlockHash, token_ids: Tokens[int]) -> BlockHash:
    """Returns the hash of the block that holds `token_ids` after what `previous` stands for."""
    packed = array("q", token_ids).tobytes()
    return hashlib.blake2b(previous + packed, digest_size=DIGEST_BYTES, person=b"block").digest()
