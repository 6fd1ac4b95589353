"""The entries of a table that a worker lacks of a prefix, by their names.

Lengths of prefixes are in rows, each of a block of every group of layers. A prefix that comes from
elsewhere ends where each group has what the next token sees; nothing behind a window comes.
"""

from collections.abc import Callable, Collection
from copy import copy
from typing import NamedTuple

from signalbox_contract.cache_groups import FULL
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.prefix_rows import PrefixRows
from signalbox_scheduler.requests.sequence_group import Sequence


class NamedEntry(NamedTuple):
    """An entry of a table, the name of what its block, or state, is to hold, and its blocks."""

    row: int
    name: BlockHash
    num_blocks: int


class PrefixPart:
    """Rows of a sequence's prefix, from `start`, before which its worker has them, to `end`."""

    def __init__(
        self, blocks: BlockSpaceManager, seq: Sequence, *, start: int = 0, end: int
    ) -> None:
        self.start, self.end = start, end
        self._blocks = blocks
        self._seq = seq
        self._sizes = [group.state_blocks or 1 for group in blocks.groups]
        self._rows = PrefixRows(blocks.groups, block_size=blocks.block_size)
        self._arrived: frozenset[BlockHash] = frozenset()

    def cut(self, end: int, *, arrived: Collection[BlockHash] = ()) -> "PrefixPart":
        """Returns the part up to another end, without entries that have arrived."""
        part = copy(self)
        part.end, part._arrived = end, self._arrived.union(arrived)
        return part

    @property
    def num_tokens(self) -> int:
        """Tokens that the entries stand for."""
        num_entries = self._rows.num_entries(self.start, self.end)
        num_tokens = (self.end - self.start) * self._blocks.block_size
        return num_tokens * self.num_names // num_entries if num_entries else 0

    @property
    def num_names(self) -> int:
        if self._arrived:
            return len(self.names)
        return self._rows.num_entries(self.start, self.end)

    @property
    def num_blocks(self) -> int:
        """Blocks of the entries, with all of states."""
        return sum(self.sizes) if self.has_states else self.num_names

    @property
    def sizes(self) -> list[int]:
        """Blocks of each entry, row by row."""
        return [one.num_blocks for one in self._entries()]

    @property
    def first_name(self) -> BlockHash | None:
        """Name of the first entry; None if there is none."""
        places = self._rows.entries(self.start, self.end)
        names = (self._name(row, column) for row, column in places)
        return next((name for name in names if name not in self._arrived), None)

    @property
    def names(self) -> list[BlockHash]:
        """Names of the entries, row by row."""
        width = self._blocks.num_groups
        names = self._blocks.prefix_hashes(self._seq, self.start * width, self.end * width)
        places = self._rows.entries(self.start, self.end)
        needed = [names[(row - self.start) * width + column] for row, column in places]
        return [name for name in needed if name not in self._arrived] if self._arrived else needed

    def entries(self, *, of_full_groups: bool) -> list[NamedEntry]:
        """Returns the entries of full groups, or of windows and states."""
        is_full = [group.kind == FULL for group in self._blocks.groups]
        columns = [column for column, full in enumerate(is_full) if full is of_full_groups]
        return self._entries(columns)

    @property
    def has_states(self) -> bool:
        """True if a prefix ends at a row that has a state."""
        return self._blocks.states.num_blocks > 0

    def states(self, *, most: int) -> list[NamedEntry]:
        """Returns the first blocks of the states of so many rows at most, the last row first."""
        column = self._blocks.num_groups - 1
        rows = range(self.end - 1, max(self.start, self.end - most) - 1, -1)
        return [NamedEntry(row, self._name(row, column), 1) for row in rows]

    def _entries(self, columns: Collection[int] | None = None) -> list[NamedEntry]:
        named = (
            NamedEntry(row, self._name(row, column), self._sizes[column])
            for row, column in self._rows.entries(self.start, self.end)
            if columns is None or column in columns
        )
        return [entry for entry in named if entry.name not in self._arrived]

    def within(self, most: int) -> "PrefixPart":
        """Returns as much of the part as has no more than so many blocks; of a part without room
        for its state nothing."""
        part = self
        while part.end > part.start and (num_over := part.num_blocks - most) > 0:
            part = part.cut(max(part.start, part.end - max(1, num_over // self._blocks.num_groups)))
        return part

    def longest(self, has: Callable[[BlockHash], bool]) -> "PrefixPart":
        """Returns as much of the part as can be had where these entries are."""

        def is_there(column: int, row: int) -> bool:
            if row < self.start:
                return True
            name = self._name(row, column)
            return name in self._arrived or has(name)

        return self.cut(self._rows.longest(self.end, is_there))

    def _name(self, row: int, column: int) -> BlockHash:
        index = row * self._blocks.num_groups + column
        return self._blocks.prefix_hashes(self._seq, index, index + 1)[0]
