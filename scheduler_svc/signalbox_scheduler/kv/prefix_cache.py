"""Names the content of KV blocks by a chain of hashes, and finds the blocks that hold it.

A block's K and V depend on every token before them, so its hash covers its own tokens and the hash
of the block before it (as in vLLM's automatic prefix caching). The chain begins with the request's
tenant, cache salt and adapter: requests that differ in one of them find nothing of each other.
"""

import bisect
import hashlib
from array import array
from collections.abc import Sequence as Tokens
from functools import cache, partial
from typing import NamedTuple

from signalbox_contract.cache_groups import FULL, NO_BLOCK, keep_all, state_group
from signalbox_contract.request import Request
from signalbox_contract.sections.store_moves import HASH_BYTES
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockHash
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cpu_tier import CpuTier
from signalbox_scheduler.kv.prefix_rows import PrefixRows
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup

_BLOCK = hashlib.blake2b(digest_size=HASH_BYTES, person=b"block")


def root_hash(*, tenant: str, cache_salt: str, adapter: str = "") -> BlockHash:
    """Returns what the chain of a tenant's salt, computed by an adapter, begins with."""
    parts = (tenant.encode(), adapter.encode())
    salted = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    salted += cache_salt.encode()
    return hashlib.blake2b(salted, digest_size=HASH_BYTES, person=b"root").digest()


def owner_of(request: Request, *, epoch: int, num_clears: int) -> bytes:
    """Returns the name that a lease has for the requests of one tenant, salt and adapter. It does
    not tell what it stands for.

    Args: num_clears: of the caches, since nothing of before may be found behind a clear.
    """
    key = epoch.to_bytes(8, "little") + num_clears.to_bytes(8, "little")
    return hashlib.blake2b(
        _root_of(request), digest_size=HASH_BYTES, key=key, person=b"owner"
    ).digest()


def next_hash(previous: BlockHash, token_ids: Tokens[int]) -> BlockHash:
    """Returns the hash of the block that holds `token_ids` after what `previous` stands for."""
    packed = array("q", token_ids).tobytes()
    hasher = _BLOCK.copy()  # in a tenth of the time that it takes to make one
    hasher.update(previous + packed)
    return hasher.digest()


def name_in_group(block_hash: BlockHash, column: int) -> BlockHash:
    """Returns the name of what a block of the group of layers in this column of tables holds."""
    return block_hash[:-1] + bytes((block_hash[-1] ^ column,)) if column else block_hash


def names_of_parts(block_hash: BlockHash, num_blocks: int) -> list[BlockHash]:
    """Returns the names of the blocks of a state, one by one, as stores and workers have them."""
    number, size = int.from_bytes(block_hash, "little"), len(block_hash)
    rest = [(number ^ part).to_bytes(size, "little") for part in range(1, num_blocks)]
    return [block_hash, *rest]


class FoundBlock(NamedTuple):
    """A block that holds tokens that a sequence needs, on the GPU or, to be copied, on the CPU."""

    block: int
    is_on_gpu: bool = True


NOT_NEEDED = FoundBlock(NO_BLOCK)
"""An entry behind a window, or of a state before the last."""


class PrefixCache:
    """Finds blocks of both pools by what they hold, in use or not."""

    def __init__(self, shape: CacheShape, *, gpu: BlockAllocator, cpu_tier: CpuTier) -> None:
        block_size, groups = shape.block_size, shape.groups
        self._block_size = block_size
        self._width = len(groups)
        self._rows = PrefixRows(groups, block_size=block_size)
        self._keeps_all = keep_all(groups)
        # Behind the last state that is found, blocks are computed again. They are kept, not their
        # equals in the cache, which would be evicted first.
        self._takes_over = state_group(groups) is not None
        full = (column for column, group in enumerate(groups) if group.kind == FULL)
        self._full_column = next(full, None)
        self._gpu = gpu
        self._cpu_tier = cpu_tier
        self._is_on = shape.prefix_caching

    def find(self, seq: Sequence) -> list[FoundBlock]:
        """Returns the first rows of a table for the sequence, for all tokens but the last at most.

        They end where each group has what the next token sees.
        """
        if self._width > 1 or not self._keeps_all:
            return self._find_rows(seq)
        prefix: list[FoundBlock] = []
        for index in range(self._most_rows(seq)):
            found = self._find(self.hash(seq, index))
            if found is None:
                break
            prefix.append(found)
        return prefix

    def _most_rows(self, seq: Sequence) -> int:
        """Returns the whole rows before a sequence's last token that may be found: none if its
        prompt has to be computed whatever is known of it."""
        is_sought = self._is_on and not seq.group.wants_prompt_logprobs
        return (seq.num_tokens - 1) // self._block_size if is_sought else 0

    def _find_rows(self, seq: Sequence) -> list[FoundBlock]:
        found = cache(partial(self._find_entry, seq))
        num_rows = self._rows.longest(
            self._most_rows(seq), lambda *place: found(*place) is not None
        )
        firsts = self._rows.firsts(num_rows)
        return [
            found(column, row) or NOT_NEEDED if row >= first else NOT_NEEDED
            for row in range(num_rows)
            for column, first in enumerate(firsts)
        ]

    def num_in_full_groups(self, seq: Sequence) -> int:
        """Returns how many of the first rows of a sequence the full groups have."""
        if self._full_column is None:
            return 0
        return self._rows.num_in_full_groups(
            self._most_rows(seq), lambda *place: self._find_entry(seq, *place) is not None
        )

    def estimate(self, seq: Sequence) -> int:
        """Returns how many of the sequence's leading rows are here, by looking at a few.

        A block is rarely here without those before it, as they are freed in that order, unless all
        groups have windows.
        """
        column = self._full_column
        if column is None:
            return len(self.find(seq)) // self._width
        bound, most = 1, self._most_rows(seq)
        while bound <= most and self._find_entry(seq, column, bound - 1) is not None:
            bound *= 2
        return bisect.bisect_left(
            range(min(bound, most)),
            True,
            key=lambda row: self._find_entry(seq, column, row) is None,
        )

    def _find_entry(self, seq: Sequence, column: int, row: int) -> FoundBlock | None:
        return self._find(name_in_group(self.hash(seq, row), column))

    def _find(self, block_hash: BlockHash) -> FoundBlock | None:
        block = self._gpu.find(block_hash)
        if block is not None:
            return FoundBlock(block)
        block = self._cpu_tier.find(block_hash)
        return None if block is None else FoundBlock(block, is_on_gpu=False)

    def record_shared(self, seq: Sequence, num_rows: int) -> None:
        """Takes the first rows of a sequence as public: others hold them too, or did."""
        if self._is_on and num_rows:
            self.hash(seq, num_rows - 1)
            seq.num_cached_blocks = num_rows

    def cache_blocks(self, seq: Sequence) -> None:
        """Lets whole computed blocks be found; to be called when their tokens are accepted."""
        if not self._is_on or seq.group.is_private:
            return
        num_whole_rows = seq.num_computed_tokens // self._block_size
        for row in range(seq.num_cached_blocks, num_whole_rows):
            block_hash, start = self.hash(seq, row), row * self._width
            for column, block in enumerate(seq.block_table[start : start + self._width]):
                if block != NO_BLOCK:
                    name = name_in_group(block_hash, column)
                    self._gpu.cache_block(block, name, takes_over=self._takes_over)
        seq.num_cached_blocks = num_whole_rows

    def name(self, seq: Sequence, index: int) -> BlockHash:
        """Returns the name of what a whole block of the sequence's table is to hold."""
        row, column = divmod(index, self._width)
        return name_in_group(self.hash(seq, row), column)

    def public_hash(self, seq: Sequence, index: int, pool: BlockAllocator) -> BlockHash | None:
        """Returns the name of a block of the sequence's table, in either pool, if it is found by
        it."""
        is_public = index < seq.num_cached_blocks * self._width
        if not is_public or pool.is_private(seq.block_table[index]):
            return None
        return self.name(seq, index)

    def distinct_blocks(
        self, group: SequenceGroup, pool: BlockAllocator
    ) -> dict[int, BlockHash | None]:
        """Returns each block of the group, in this pool, once, and its name if it is found by
        it."""
        return {
            block: self.public_hash(seq, index, pool)
            for seq in group.unfinished
            for index, block in enumerate(seq.block_table)
            if block != NO_BLOCK
        }

    def retract(self, seq: Sequence) -> list[BlockHash]:
        """Keeps the blocks of a sequence that went wrong, those that it has given up and copies of
        them from being found.

        Returns the hashes by which they could be.
        """
        hashes = [found for block in held(seq.block_table) if (found := self._gpu.retract(block))]
        cached = seq.block_table[: seq.num_cached_blocks * self._width]
        given_up = [self.name(seq, i) for i, one in enumerate(cached) if one == NO_BLOCK]
        for block_hash in given_up:
            if (block := self._gpu.find(block_hash)) is not None:
                self._gpu.retract(block)
        hashes += given_up
        for block_hash in hashes:
            self._cpu_tier.forget(block_hash)
        return hashes

    def private_hash(self, seq: Sequence, index: int) -> BlockHash:
        """Returns a name of what a block of the sequence's table holds so far, whole or not.

        No block is found by it, and no other sequence has the same.
        """
        row, column = divmod(index, self._width)
        start = row * self._block_size
        previous = self.hash(seq, row - 1) if row else _root_of(seq.group.request)
        tokens = seq.tokens(start, min(start + self._block_size, seq.num_computed_tokens))
        packed = array("q", [seq.seq_id, *tokens]).tobytes()
        part = hashlib.blake2b(previous + packed, digest_size=HASH_BYTES, person=b"part")
        return name_in_group(part.digest(), column)

    def hash(self, seq: Sequence, row: int) -> BlockHash:
        """Returns the name of the tokens of a whole row of the sequence's table, and of all before
        them."""
        hashes = seq.block_hashes.setdefault(self._block_size, [])
        while len(hashes) <= row:
            start = len(hashes) * self._block_size
            previous = hashes[-1] if hashes else _root_of(seq.group.request)
            tokens = seq.tokens(start, start + self._block_size)
            assert len(tokens) == self._block_size, f"{seq.seq_id}: row {row} is not whole"
            hashes.append(next_hash(previous, tokens))
        return hashes[row]


def _root_of(request: Request) -> BlockHash:
    return root_hash(tenant=request.tenant, cache_salt=request.cache_salt, adapter=request.adapter)
