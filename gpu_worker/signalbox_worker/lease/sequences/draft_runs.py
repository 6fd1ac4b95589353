"""Runs of drafts: the draws behind a sequence's last token and its drafts, and those that count.

A draft is kept if and only if it equals the token that is drawn at its position. So each draw
behind a kept draft is the one that a step of its own would have made, and what follows the first
difference is as if it had never been computed: its K and V are written again before they are read.
"""

from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.columns import Column, int32s, int64s
from signalbox_contract.sections.drafts import DraftCounts, DraftSource
from signalbox_worker.batch.arrays import Int32Array, Int64Array

NO_DRAFT = -1
"""Stands for a draft behind the last draw of a run; no token equals it."""


@dataclass(slots=True, kw_only=True)
class DraftRuns:
    """The drafts of a batch. The draws of a sequence with drafts are neighbours."""

    num_drafts: Int64Array
    """[num sequences]."""
    sources: dict[int, DraftSource]
    """Source of each sequence that has drafts, by its index in the batch."""
    ahead: Int64Array
    """[num draws], drafts between the sequence's known tokens and each draw."""
    behind: Int32Array
    """[num draws], the draft that is computed behind each draw, or NO_DRAFT."""
    proposing_ns: int = 0
    """Nanoseconds in which they were proposed."""

    def end_run(self, draw: int) -> None:
        """Ends a run with a draw, so that those behind it do not count."""
        self.behind[draw] = NO_DRAFT

    def counts(self, token_ids: Int32Array, failed: Iterable[int]) -> NDArray[np.bool_]:
        """Returns for each draw whether all drafts before it were accepted.

        A failed draw behind a draft does not count: it will be the first of a later step.

        Args: failed: draws that gave no token.
        """
        has_failed = np.zeros(len(token_ids), dtype=np.bool_)
        has_failed[list(failed)] = True
        differs = (token_ids != self.behind) | has_failed
        before = np.cumsum(differs) - differs
        first = np.arange(len(self.ahead)) - self.ahead
        is_same: NDArray[np.bool_] = before == before[first]
        return is_same & ~(has_failed & (self.ahead > 0))

    def run_lengths(self, keep: NDArray[np.bool_]) -> Column | None:
        """Returns the number of kept draws of each run; None if each has one."""
        starts = np.flatnonzero(self.ahead[keep] == 0)
        num_tokens = np.count_nonzero(keep)
        if len(starts) == num_tokens:
            return None
        return int32s(np.diff(np.append(starts, num_tokens)).astype(np.int32))

    def report(self, seq_ids: Int64Array, *, failed: Container[int]) -> DraftCounts | None:
        """Returns the counts of the sequences that have not failed; None if there are none.

        Args: failed: indices into the batch.
        """
        index = [i for i in self.sources if i not in failed]
        if not index:
            return None
        return DraftCounts(
            int64s(seq_ids[index]),
            int32s(self.num_drafts[index].astype(np.int32)),
            int32s([self.sources[i] for i in index]),
        )
