"""Interface through which a worker's plans move KV to and from stores and other workers.

The scheduler calls a connector's hooks in each step. This base class moves nothing: a worker that
has neither a store nor another worker to exchange KV with keeps it. What the block manager finds,
frees and takes back are events that a connector reads, if it has any use for them.
"""

import math
from collections.abc import Callable, Iterable

from signalbox_contract.sections.store_moves import ClearMark, MoveResult
from signalbox_contract.worker_role import WorkerRole
from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import SequenceGroup

OnCleared = Callable[[str], None]
"""Called once with why a store could not be cleared, or with an empty text."""


def nothing_waits(_fault: str) -> None:
    """Takes the end of a clear that nothing waits for."""


class KVConnector:
    """Moves nothing."""

    # A step

    def begin_step(self, plan: StepPlan, now: float) -> None:
        """Goes on with what is under way, before the plan takes groups and blocks.

        Sets `plan.has_incoming` if `admit_ready` will have a group for it.
        """

    def admit_ready(self, now: float) -> Iterable[SequenceGroup]:
        """Lets groups that come from other workers, and whose blocks are here, run here.

        Returns them. Their last blocks come with the step that is being planned.
        """
        return ()

    def release_reservation(self, now: float) -> bool:
        """Gives up the blocks that are kept for the group that began to come last.

        Returns False if none are kept.
        """
        return False

    def finish_step(self, plan: StepPlan, now: float) -> None:
        """Gives a filled plan what it begins, and calls off."""

    def process(self, results: Iterable[MoveResult], now: float) -> None:
        """Takes what has ended, before the tokens of the same result are processed."""

    def step_answered(self, now: float) -> None:
        """Follows what the result of a step has changed."""

    # Time

    @property
    def next_poll_at(self) -> float:
        """Time at which a step is due that asks for what has ended, if none is planned before.

        Infinite if nothing is under way.
        """
        return math.inf

    @property
    def overdue_at(self) -> float:
        """Time at which the worker is lost, because it has not ended what was called off."""
        return math.inf

    @property
    def exchanges_groups(self) -> bool:
        """True while groups come from other workers or go there, and so wait for the next step."""
        return False

    # The worker

    def set_role(self, role: WorkerRole) -> None:
        """Follows which part of the work is the worker's from now on."""

    def drain(self) -> None:
        """Brings nothing for waiting requests any more."""

    def clear(
        self, tenant: str | None, on_cleared: OnCleared, mark: ClearMark | None = None
    ) -> None:
        """Empties the store, and lets what is under way come to nothing.

        The pools have forgotten what they hold; see `Scheduler.clear_prefix_cache`.
        """
        on_cleared("")

    def avoid_store(self) -> None:
        """Reads the store no more, until all of it is cleared."""

    def close(self) -> None:
        """Gives up what is under way: the worker is gone."""

    def samples(self) -> Iterable[Sample]:
        """Yields its counts, since the worker joined."""
        return ()

    def check(self) -> None:
        """Asserts its invariants."""
