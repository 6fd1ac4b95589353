"""Maps sequences to KV blocks of a draft model, and says which of their tokens are computed.

Pure bookkeeping. A sequence has rows: a block of each group of layers for `block_size` tokens.
Sequences share no rows, since a worker does not know which tenants may share tokens.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import takewhile

from signalbox_worker.batch.arrays import Int32Array

IDLE_STEPS = 64
"""Steps without a request for drafts after which a sequence may lose its rows to others."""


@dataclass(slots=True)
class KeptSequence:
    """Rows of a sequence, and the tokens whose K and V they hold."""

    rows: list[int] = field(default_factory=list)
    num_known: int = 0
    """Number of known tokens that are computed."""
    drafts: list[int] = field(default_factory=list)
    """Drafts that are computed behind them, the earliest first."""
    last_step: int = 0
    """Step that asked about it last."""

    @property
    def num_computed(self) -> int:
        return self.num_known + len(self.drafts)

    def settle(self, token_ids: Int32Array) -> None:
        """Counts accepted drafts as known tokens, and drops the others.

        Args:
            token_ids: all known tokens. The last one always counts as missing, since the next draft
                is drawn behind it.
        """
        behind = token_ids[self.num_known : self.num_computed].tolist()
        pairs = zip(self.drafts, behind, strict=False)
        num_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.num_known = min(self.num_known + num_accepted, len(token_ids) - 1)
        self.drafts = []


class DraftCache:
    """Gives rows to sequences. A sequence that needs more than are free gets none for now."""

    def __init__(self, *, num_rows: int, block_size: int) -> None:
        self._num_rows, self._block_size = num_rows, block_size
        self._free = list(range(num_rows))
        self._kept: OrderedDict[int, KeptSequence] = OrderedDict()  # least recently used first
        self._step = 0

    @property
    def num_free_rows(self) -> int:
        return len(self._free)

    def begin_step(self) -> None:
        self._step += 1

    def get(self, seq_id: int) -> KeptSequence:
        """Returns a sequence that a step asks about."""
        kept = self._kept.setdefault(seq_id, KeptSequence())
        kept.last_step = self._step
        self._kept.move_to_end(seq_id)
        return kept

    def reserve(self, seq_id: int, *, least: int, most: int) -> int:
        """Gives a sequence rows for `most` tokens, or for as many as possible.

        Returns the number of tokens that fit; 0, taking all its rows back, if `least` do not fit.
        """
        kept = self._kept[seq_id]
        num_missing = max(0, -(-most // self._block_size) - len(kept.rows))
        while len(self._free) < num_missing and self._evict_idle():
            pass
        if (len(kept.rows) + len(self._free)) * self._block_size < least:
            self._take_back(kept)
            return 0
        kept.rows += [self._free.pop() for _ in range(min(num_missing, len(self._free)))]
        return len(kept.rows) * self._block_size

    def forget(self, seq_id: int) -> None:
        if kept := self._kept.pop(seq_id, None):
            self._take_back(kept)

    def _take_back(self, kept: KeptSequence) -> None:
        self._free += kept.rows
        kept.rows, kept.num_known, kept.drafts = [], 0, []

    def _evict_idle(self) -> bool:
        """Takes the rows of the least recently used sequence; False if its last use is recent."""
        seq_id, kept = next(iter(self._kept.items()))
        if self._step - kept.last_step <= IDLE_STEPS:
            return False
        self.forget(seq_id)
        return True

    def check(self) -> None:
        """Asserts that each row is free or held by one sequence, and that computed tokens fit."""
        held = [row for kept in self._kept.values() for row in kept.rows]
        assert sorted([*self._free, *held]) == list(range(self._num_rows))
        for kept in self._kept.values():
            assert kept.num_computed <= len(kept.rows) * self._block_size
