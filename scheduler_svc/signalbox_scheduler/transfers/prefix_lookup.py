"""Finds how far a store has a prefix, by lookups that each count the leading blocks of a list.

The first asks for the full groups. The others ask for what windows and states need at the end that
is known so far, the last row first: where a block is missing, the prefix ends before it, and they
need other blocks there.
"""

from collections.abc import Callable

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.transfers.prefix_part import PrefixPart

MAX_LOOKUPS = 8
"""Lookups of one prefix. If windows or states still lack something after these, it is computed."""


class PrefixLookup:
    """The lookups of one prefix.

    Args:
        may_come: says whether a block may come from the store at all.
    """

    def __init__(self, wanted: PrefixPart, *, may_come: Callable[[BlockHash], bool]) -> None:
        self.part = wanted.longest(may_come)
        """The part of the prefix that the store may have, by what is known."""
        self._may_come = may_come
        self._of_full_groups = True
        self._num_lookups = 1
        self._asked = self.part.entries(of_full_groups=True)
        if not self._asked:
            self._ask_for_others()
        self.first_names = self.names
        """Names of what the first lookup asks for."""

    def _ask_for_others(self) -> None:
        self._of_full_groups = False
        self._asked = self.part.entries(of_full_groups=False)[::-1]

    @property
    def names(self) -> list[BlockHash]:
        """Names of what is to be looked up now."""
        return [entry.name for entry in self._asked]

    @property
    def sizes(self) -> list[int]:
        """Blocks of each."""
        return [entry.num_blocks for entry in self._asked]

    def found(self, num_blocks: int, *, most: int) -> bool:
        """Takes the end of a lookup; returns whether another one is needed.

        Args:
            most: entries that may be fetched.
        """
        is_whole = num_blocks >= len(self._asked)
        if not is_whole:
            self.part = self.part.cut(self._asked[num_blocks].row)
        self.part = self.part.longest(self._may_come).within(most)
        if is_whole and not self._of_full_groups:
            return False
        self._ask_for_others()
        if self._asked and self._num_lookups == MAX_LOOKUPS:
            self.part = self.part.cut(self.part.start)
            return False
        self._num_lookups += 1
        return bool(self._asked)
