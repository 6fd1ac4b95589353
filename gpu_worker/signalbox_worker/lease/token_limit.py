"""Limit of a step's tokens that fit in memory, learnt from steps that did not fit.

The profiling run measures the largest step, but others share a card, and fragments of memory add
up. A step that failed is run in parts; the largest part that could be is the limit from then on, of
which the scheduler hears with each answer. It is doubled now and then, for what took the memory may
be gone. A sequence whose attention sees both ways is computed whole: alone, it is tried even beyond
the limit.
"""

import logging

from signalbox_worker.batch.batch import Batch

logger = logging.getLogger(__name__)

STEPS_TO_RETRY = 256
"""Steps between two attempts at a larger limit; a failed attempt costs about a step."""


class TokenLimit:
    """`announced` is what the worker was profiled for."""

    def __init__(self, announced: int, *, cuts_sequences: bool = True) -> None:
        """`cuts_sequences` is False if each sequence must be computed whole."""
        self.cuts_sequences = cuts_sequences
        self.tokens = announced
        """Most tokens of a step that is tried as a whole."""
        self.lowered: int | None = None
        """Limit to report to the scheduler; None while the announced one holds."""
        self._announced = announced
        self._num_steps = 0

    def allows(self, batch: Batch) -> bool:
        """Returns whether a batch is tried as a whole."""
        is_whole = not self.cuts_sequences and len(batch.query_start) == 2
        return len(batch.token_ids) <= self.tokens or is_whole

    def lower(self, tokens: int) -> None:
        """Records the most tokens that could be computed at once."""
        if tokens < self.tokens:
            self.tokens = self.lowered = max(1, tokens)
            self._num_steps = 0
            logger.warning(
                "memory suffices for steps of %d tokens, not %d", tokens, self._announced
            )

    def count_step(self) -> None:
        """Records a step that was computed within a lowered limit."""
        self._num_steps += 1
        if self._num_steps == STEPS_TO_RETRY:
            self._num_steps = 0
            self.tokens = min(2 * self.tokens, self._announced)
            self.lowered = self.tokens if self.tokens < self._announced else None
