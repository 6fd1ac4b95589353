"""Limit of a step's tokens that fit in memory, learnt from steps that did not fit.

The profiling run measures the largest step, but others share a card, and fragments of memory add
up. A step that failed is run in parts; the largest part that could be is the limit from then on, of
which the scheduler hears with each answer. It is doubled now and then, for what took the memory may
be gone.
"""

import logging
from dataclasses import dataclass

logger = logging.getLogger(__name__)

STEPS_TO_RETRY = 256
"""Steps between two attempts at a larger limit; a failed attempt costs about a step."""


@dataclass(slots=True)
class TokenLimit:
    """`announced` is what the worker was profiled for."""

    announced: int
    _lowered: int | None = None
    _num_steps: int = 0

    @property
    def tokens(self) -> int:
        return self.announced if self._lowered is None else self._lowered

    @property
    def lowered(self) -> int | None:
        """Limit to report to the scheduler; None while the announced one holds."""
        return self._lowered

    def lower(self, tokens: int) -> None:
        """Records the most tokens that could be computed at once."""
        if tokens < self.tokens:
            self._lowered, self._num_steps = max(1, tokens), 0
            logger.warning("memory suffices for steps of %d tokens, not %d", tokens, self.announced)

    def count_step(self) -> None:
        """Records a step that was computed within the limit."""
        if self._lowered is None:
            return
        self._num_steps += 1
        if self._num_steps == STEPS_TO_RETRY:
            self._num_steps = 0
            self._lowered = 2 * self._lowered if 2 * self._lowered < self.announced else None
