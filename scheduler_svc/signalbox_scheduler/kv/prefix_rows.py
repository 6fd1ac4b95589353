"""Which entries of a table a prefix needs: those that the token behind it sees, group by group."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from signalbox_contract.cache_groups import FULL, CacheGroup


class PrefixRows:
    """Arithmetic with the rows of a prefix, for the groups of one worker."""

    def __init__(self, groups: Sequence[CacheGroup], *, block_size: int) -> None:
        self._groups = groups
        self._full = [column for column, group in enumerate(groups) if group.kind == FULL]
        self._others = [(c, group) for c, group in enumerate(groups) if group.kind != FULL]
        self._block_size = block_size

    def firsts(self, num_rows: int) -> list[int]:
        """Returns the first row of each group that a prefix of so many rows needs."""
        num_tokens = num_rows * self._block_size
        return [one.first_block(num_tokens, block_size=self._block_size) for one in self._groups]

    def num_entries(self, start: int, end: int) -> int:
        """Returns how many entries a prefix of `end` rows needs beyond its first `start` rows."""
        return sum(end - max(start, first) for first in self.firsts(end))

    def entries(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yields row and column of these entries, row by row."""
        firsts = self.firsts(end)
        for row in range(start, end):
            for column, first in enumerate(firsts):
                if row >= first:
                    yield row, column

    def longest(self, num_rows: int, has: Callable[[int, int], bool]) -> int:
        """Returns the rows of the longest prefix, of so many at most, for which each group has what
        the next token sees.

        Args:
            has: says whether a block of a column and a row is there.
        """
        num_rows, before = self.num_in_full_groups(num_rows, has), -1
        while num_rows != before:
            before = num_rows
            for column, group in self._others:
                num_rows = self._longest_of_group(group, num_rows, partial(has, column))
        return num_rows

    def num_in_full_groups(self, num_rows: int, has: Callable[[int, int], bool]) -> int:
        """Returns how many of the first rows, of so many at most, the full groups have."""
        for column in self._full:
            rows = range(num_rows)
            num_rows = next((row for row in rows if not has(column, row)), num_rows)
        return num_rows

    def _longest_of_group(self, group: CacheGroup, end: int, has: Callable[[int], bool]) -> int:
        """Returns the rows of the longest prefix, of `end` at most, for which a group has what the
        next token sees."""
        while end:
            first = group.first_block(end * self._block_size, block_size=self._block_size)
            missing = (row for row in reversed(range(first, end)) if not has(row))
            if (gap := next(missing, None)) is None:
                return end
            end = gap
        return 0
