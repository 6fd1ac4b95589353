"""Finds how far a store has a prefix, by lookups that each count the leading blocks of a list.

The first asks for the full groups. The others ask for what windows and states need at the end that
is known so far, the last row first: where a block is missing, the prefix ends before it, and they
need other blocks there. Where it is a state, which few rows have, the last row before it is sought
that has one.
"""

from collections.abc import Callable

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.transfers.prefix_part import PrefixPart

MAX_LOOKUPS = 8
"""Lookups of one prefix. If windows or states still lack something after these, it is computed."""
MAX_SOUGHT = 128
"""Rows among which one lookup seeks a state, so that a server is asked for each in time; a long
prompt has a snapshot for each so many rows of 16 tokens."""


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
        self.seeks = False
        """True if the lookup is to count the names before the first that the store has."""
        self._num_lookups = 1
        self._asked = self.part.entries(of_full_groups=True)
        if not self._asked:
            self._ask_for_others()
        self.first_names = self.names
        """Names of what the first lookup asks for."""

    def _ask_for_others(self) -> None:
        self._of_full_groups = self.seeks = False
        self._asked = self.part.entries(of_full_groups=False)[::-1]

    def _seek_state(self) -> None:
        self.seeks = True
        self._asked = self.part.states(most=MAX_SOUGHT)

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
        is_of_others = not (self._of_full_groups or self.seeks)
        self.part = self.part.cut(self._end(num_blocks)).longest(self._may_come).within(most)
        if is_whole and is_of_others:
            return False
        if is_of_others and not num_blocks and self.part.has_states:  # it is what was asked first
            self._seek_state()
        else:
            self._ask_for_others()
        if self._asked and self._num_lookups == MAX_LOOKUPS:
            self.part = self.part.cut(self.part.start)
            return False
        self._num_lookups += 1
        return bool(self._asked)

    def _end(self, num_blocks: int) -> int:
        """Returns how many rows the store may have, by what a lookup has counted."""
        if num_blocks < len(self._asked):
            return self._asked[num_blocks].row + int(self.seeks)
        return self._asked[-1].row if self.seeks else self.part.end
