"""Hands out the blocks of one pool, counts their owners, and keeps blocks that may be used again.

A block is used (it has owners), cached (it has none, but what it holds is known by a hash and may
be wanted again) or free. A used block that may be found no more is private: what it holds has been
forgotten, or went wrong for one of its owners. `check` states the conservation law.

A state of recurrent layers is a run of blocks, in any order, of which the first stands for all: the
others have no owners of their own, and are used, cached and free as that one is.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, auto
from typing import NamedTuple, Protocol
from weakref import WeakSet

from signalbox_scheduler.kv.eviction_policy import LEAST_RECENT

BlockHash = bytes


class AllocStatus(Enum):
    """Answer to a request for blocks: now, after other groups have freed some, or never."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


class BlockCopy(NamedTuple):
    """Copy physical block `src` to physical block `dst`."""

    src: int
    dst: int


class HoldKind(Enum):
    """Purpose for which blocks are owned that no sequence owns, named as in watch.proto."""

    PLAN = auto()
    """They are part of the plan in the making."""
    PREFIX = auto()
    """A request waits for the rest of the prefix that they hold."""
    FETCH = auto()
    STORE = auto()
    EXPORT = auto()
    MIGRATION = auto()
    """A request that comes from another worker gets them."""
    AUDIT = auto()
    """An earlier answer is computed again in them."""


class BlockHolder(Protocol):
    """Owner of blocks other than the sequences of requests."""

    @property
    def blocks(self) -> list[int]: ...

    @property
    def kind(self) -> HoldKind: ...


class _RecordedBlocks(OrderedDict[int, None]):
    """Cached blocks that also notes which of them came or went."""

    def __init__(self, blocks: Iterable[int]) -> None:
        self.changed: set[int] = set()
        super().__init__()
        for block in blocks:
            self[block] = None

    def __setitem__(self, block: int, value: None) -> None:
        self.changed.add(block)
        super().__setitem__(block, value)

    def __delitem__(self, block: int) -> None:
        self.changed.add(block)
        super().__delitem__(block)

    def pop(self, block: int, default: None = None) -> None:  # type: ignore[override]
        self.changed.add(block)
        super().pop(block, default)


class Obtained(NamedTuple):
    """A block that has got an owner, and whether it held what was asked for before."""

    block: int
    is_found: bool


def _drop(_blocks: list[int], _block_hash: BlockHash) -> None:
    """Lets what an evicted block holds go."""


class BlockAllocator:
    """Block numbers [0, num_blocks) of one device.

    Free blocks are handed out before cached ones; of those `eviction` chooses.

    Args:
        num_reserved: free blocks that are left to running groups when another comes in.
        on_evict: told of a cached block, or the blocks of a state, and the hash, before they are
            handed out for something else; not of those that are evicted first.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        num_reserved: int = 0,
        on_evict: Callable[[list[int], BlockHash], None] = _drop,
    ) -> None:
        self.num_blocks = num_blocks
        self.num_reserved = num_reserved
        self.eviction = LEAST_RECENT
        """Chooses the cached blocks that are evicted."""
        self._on_evict = on_evict
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_owners = [0] * num_blocks
        self._cached: OrderedDict[int, None] = OrderedDict()  # without owners; first goes first
        self._first: set[int] = set()  # of these, the ones that no request is likely to want
        self._hash_of: dict[int, BlockHash] = {}  # used and cached blocks that may be found
        self._block_of: dict[BlockHash, int] = {}
        self._private: set[int] = set()
        self._rest: dict[int, list[int]] = {}  # the other blocks of states, by the first
        self._num_cached_rest = 0  # of those, the ones of cached states
        self.holds: WeakSet[BlockHolder] = WeakSet()
        """Owners of blocks other than sequences, as long as they exist."""
        self.incoming: list[BlockCopy] = []
        """Copies to blocks of this pool that the plan in the making calls for."""

    @property
    def num_free(self) -> int:
        """Blocks that can be had: free and cached."""
        return len(self._free) + len(self._cached) + self._num_cached_rest

    def room_for(self, num_blocks: int) -> AllocStatus:
        """Says whether a group that comes in can have so many blocks, now or later."""
        is_alone = self.num_free == self.num_blocks  # then no group runs that needs the others
        enough = self.num_free - num_blocks >= (0 if is_alone else self.num_reserved)
        return AllocStatus.OK if enough else AllocStatus.LATER

    @property
    def num_empty(self) -> int:
        """Blocks that hold nothing."""
        return len(self._free)

    @property
    def share_in_use(self) -> float:
        """Share of the blocks that sequences own, from 0 to 1."""
        return 1 - self.num_free / self.num_blocks if self.num_blocks else 0.0

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def cached_blocks(self) -> list[int]:
        """Blocks without owners that may be found, the first to be evicted first."""
        return list(self._cached)

    def record_cached(self) -> set[int]:
        """Begins to note which blocks become cached or cease to be, those that are included.

        Returns the set in which they are noted; the caller may clear it.
        """
        self._cached = recorded = _RecordedBlocks(self._cached)
        return recorded.changed

    def stop_recording(self) -> None:
        self._cached = OrderedDict(self._cached)

    def num_owners(self) -> dict[int, int]:
        """Returns how many share each block in use."""
        owners = {block: count for block, count in enumerate(self._num_owners) if count}
        for head, rest in self._rest.items():
            owners |= dict.fromkeys(rest, owners[head]) if head in owners else {}
        return owners

    def num_holds(self) -> Counter[int]:
        """Returns how many holds own each block."""
        return Counter(block for hold in self.holds for block in hold.blocks)

    @property
    def hashes(self) -> Mapping[int, BlockHash]:
        """Hash of each used or cached block that may be found."""
        return self._hash_of

    def allocate(self) -> int:
        """Takes a block. Raises IndexError if there is none: ask `num_free` first."""
        if not self._free and (cached := self._cached):
            # Those that are to go first are at the front.
            policy = LEAST_RECENT if self._first else self.eviction
            self._evict(policy.choose(cached, self._block_of))
        block = self._free.pop()
        self._num_owners[block] = 1
        return block

    def allocate_state(self, num_blocks: int) -> int:
        """Takes the blocks of a state and returns the first; ask `num_free` first.

        A state of one block is a block like others.
        """
        head, *rest = [self.allocate() for _ in range(num_blocks)]
        for block in rest:
            self._num_owners[block] = 0
        if rest:
            self._rest[head] = rest
        return head

    def blocks_of(self, head: int) -> list[int]:
        """Returns a block and, if it is the first of a state, the others of that."""
        return [head, *self._rest.get(head, ())]

    def num_blocks_of(self, heads: Iterable[int]) -> int:
        """Returns how many blocks some are, with the others of states."""
        return sum(1 + len(self._rest.get(head, ())) for head in heads)

    def obtain(self, block_hash: BlockHash | None, *, num_blocks: int = 1) -> Obtained:
        """Shares the block that holds what a hash stands for, or takes one that is to hold it.

        Args:
            num_blocks: those of a state.
        """
        if block_hash is None:
            return Obtained(self.allocate_state(num_blocks), is_found=False)
        found = self.find(block_hash)
        if found is not None:
            self.share(found)
            return Obtained(found, is_found=True)
        block = self.allocate_state(num_blocks)
        self.cache_block(block, block_hash)
        return Obtained(block, is_found=False)

    def share(self, block: int) -> None:
        """Adds an owner to a block in use, or takes a cached one into use."""
        assert self._num_owners[block] or block in self._cached, f"block {block} is free"
        if block in self._rest and not self._num_owners[block]:
            self._num_cached_rest -= len(self._rest[block])
        self._cached.pop(block, None)
        if self._first:
            self._first.discard(block)
        self._num_owners[block] += 1

    def free(self, block: int, *, evict_first: bool = False) -> None:
        """Takes an owner away; without any a block that can be found is kept, others are free."""
        assert self._num_owners[block] > 0, f"block {block} is freed twice"
        self._num_owners[block] -= 1
        if not self._num_owners[block]:
            self._private.discard(block)
            if block in self._hash_of:
                self._cached[block] = None
                if evict_first:
                    self.touch(block, evict_first=True)
                self._num_cached_rest += len(self._rest.get(block, ()))
            else:
                self._free.append(block)
                self._free += self._rest.pop(block, ())

    def free_chain(self, blocks: Sequence[int]) -> None:
        """Takes an owner of each block of a chain away, so that its end is forgotten first."""
        for block in reversed(blocks):
            self.free(block)

    def omit_copies(self, blocks: Iterable[int]) -> None:
        """Omits copies of the plan in the making to blocks of an owner that gives them up.

        Blocks that others own, too, are copied.
        """
        heads = {block for block in blocks if not self.is_shared(block)}
        given_up = {block for head in heads for block in self.blocks_of(head)}
        for copy in self.incoming:
            if copy.dst in given_up:
                self.retract(copy.dst)
        self.incoming = [copy for copy in self.incoming if copy.dst not in given_up]

    def touch(self, block: int, *, evict_first: bool = False) -> None:
        """Makes a cached block the last to be evicted, or the first; a no-op for one in use."""
        if block in self._cached:
            self._cached.move_to_end(block, last=not evict_first)
            (self._first.add if evict_first else self._first.discard)(block)

    def is_shared(self, block: int) -> bool:
        return self._num_owners[block] > 1

    def is_owned(self, block: int) -> bool:
        """Says whether a block has owners of its own, unlike those of a state behind its first."""
        return self._num_owners[block] > 0

    def num_used(self, hashes: Iterable[BlockHash]) -> int:
        """Returns how many of these hashes belong to blocks in use."""
        blocks = map(self.find, hashes)
        return sum(block is not None and self._num_owners[block] > 0 for block in blocks)

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def cache_block(self, block: int, block_hash: BlockHash, *, takes_over: bool = False) -> None:
        """Lets a used block be found, unless another block holds the same, it has a hash or it is
        private.

        Args:
            takes_over: whether a block without owners that holds the same is free then.
        """
        assert self._num_owners[block] > 0, f"block {block} has no owner"
        if block in self._private:
            return
        if takes_over and (other := self._block_of.get(block_hash)) in self._cached:
            assert other is not None
            self.forget_hash(other)
        if block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def retract(self, block: int) -> BlockHash | None:
        """Keeps a block from being found while it has owners; returns the hash by which it was."""
        if self._num_owners[block]:
            self._private.add(block)
        return self.forget_hash(block)

    def forget_hash(self, block: int) -> BlockHash | None:
        """Lets what a block holds be found no more; what it holds next may be."""
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]
            if block in self._cached:
                del self._cached[block]
                self._first.discard(block)
                rest = self._rest.pop(block, ())
                self._num_cached_rest -= len(rest)
                self._free += [block, *rest]
        return block_hash

    def is_private(self, block: int) -> bool:
        """Says whether nothing may find a block in use, nor a copy of it."""
        return block in self._private

    def forget_hashes(self) -> None:
        """Keeps all blocks from being found, without telling `on_evict`; cached ones are free."""
        for block in list(self._hash_of):
            self.retract(block)

    def find(self, block_hash: BlockHash) -> int | None:
        """Returns the used or cached block that holds what the hash stands for."""
        return self._block_of.get(block_hash)

    def _evict(self, block: int) -> None:
        blocks = self.blocks_of(block)
        is_told = block not in self._first
        block_hash = self.retract(block)
        assert block_hash is not None, f"cached block {block} has no hash"
        if is_told:
            self._on_evict(blocks, block_hash)

    def check(self, owners: Mapping[int, int]) -> None:
        """Asserts that what was handed out has its owners.

        Args:
            owners: block to number of block tables that have it; holds are counted here.
        """
        used = {block: count for block, count in enumerate(self._num_owners) if count}
        free, cached = set(self._free), self._cached.keys()
        rest = [block for blocks in self._rest.values() for block in blocks]
        assert used == Counter(owners) + self.num_holds(), "owners differ from tables and holds"
        assert len(free) == len(self._free), "a block is free twice"
        assert not (used.keys() & free or used.keys() & cached or cached & free), "in two places"
        assert not {*rest} & (used.keys() | free | cached), "a block of a state is elsewhere, too"
        assert self._rest.keys() <= used.keys() | cached, "a state is neither used nor cached"
        in_cache = [block for head in self._rest.keys() & cached for block in self._rest[head]]
        assert len(in_cache) == self._num_cached_rest, "blocks of cached states"
        num_known = len(free) + len(cached) + len(used) + len({*rest})
        assert num_known == self.num_blocks, "free + cached + used"
        assert cached <= self._hash_of.keys(), "a cached block cannot be found"
        assert self._first <= cached, "a block that is not cached is to be evicted first"
        assert not free & self._hash_of.keys(), "a free block can be found"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of
        assert self._private <= used.keys(), "a private block has no owner"
        assert not self._private & self._hash_of.keys(), "a private block can be found"
