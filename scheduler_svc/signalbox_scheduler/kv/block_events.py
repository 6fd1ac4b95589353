"""Events of blocks that the connector of a worker hears of."""

from typing import NamedTuple

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.requests.sequence_group import Sequence


class PrefixFound(NamedTuple):
    """A sequence has started with blocks that hold its first tokens already."""

    seq: Sequence
    num_rows: int


class SequenceFreed(NamedTuple):
    """A sequence that has ended has given its blocks back."""

    seq: Sequence
    num_cached_blocks: int
    """Leading blocks that could be found by their hashes."""


class BlockRetracted(NamedTuple):
    """Blocks of a hash are found no more, because their sequence went wrong."""

    block_hash: BlockHash


BlockEvent = PrefixFound | SequenceFreed | BlockRetracted
