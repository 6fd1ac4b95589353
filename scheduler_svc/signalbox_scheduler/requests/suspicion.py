"""Suspicion of a request that was in flight when a worker was lost, and may be the cause.

A worker that is lost takes the requests of its steps in flight with it, and any of them, or the
worker, may be at fault. So the loss counts against the worker, and these requests are suspects:
each computes alone in its steps until it has passed the position of the loss. A loss in such a step
counts against the request. `loss_attribution.py` corrects the counts once the cause is
known.

A step that fails and takes states of recurrent layers with it is such a loss, too: of the requests
in that step alone, by a worker that goes on.

One by one, not in halves (Dorfman, 1943): a suspect costs a few steps, a wrong half a worker.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

MAX_LOSSES = 3
"""A suspect that was in flight at so many losses, alone at all but the first, ends as their cause.
One loss alone can be a coincidence; each further one costs all that its worker computes."""


class Loss(NamedTuple):
    """A worker that was lost, or that failed when it was tried."""

    worker: str
    at: float
    """Seconds on the clock of `WorkerRecords`."""
    is_of_step: bool = False
    """True if the worker goes on, and has what the request has computed before the step."""


@dataclass(slots=True)
class Suspicion:
    """Losses of workers that a request may have caused."""

    position: int
    """Tokens of its longest sequence that were computed, or in flight, when the worker was lost."""
    losses: list[Loss] = field(default_factory=list)
    """The first counts against its worker until the verdict: the suspect was not alone then."""
    shunned: frozenset[str] = frozenset()
    """Names of workers that it was lost on, while another worker takes it."""

    @property
    def is_proven(self) -> bool:
        """True if the request counts as the cause of its losses."""
        return len(self.losses) >= MAX_LOSSES
