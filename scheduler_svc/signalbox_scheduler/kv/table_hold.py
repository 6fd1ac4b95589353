"""Owns the blocks of a sequence that is not a request's, as a `Hold` owns others."""

from signalbox_scheduler.kv.block_allocator import BlockAllocator, HoldKind
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.requests.sequence_group import Sequence


class TableHold:
    """The blocks in the table of a sequence, as it is now, for as long as this object exists."""

    __slots__ = ("__weakref__", "_seq", "kind")

    def __init__(self, pool: BlockAllocator, seq: Sequence, *, kind: HoldKind) -> None:
        self.kind = kind
        self._seq = seq
        pool.holds.add(self)

    @property
    def blocks(self) -> list[int]:
        return held(self._seq.block_table)
