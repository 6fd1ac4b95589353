"""Interface by which a plan takes in groups from other workers."""

from collections.abc import Iterable
from typing import Protocol

from signalbox_scheduler.requests.sequence_group import SequenceGroup


class IncomingGroups(Protocol):
    """Groups that are handed over to one worker, and the blocks that are kept for them."""

    @property
    def has_ready(self) -> bool:
        """True if a group has all its blocks here, in the plan that is being filled."""

    def take_in(self, now: float) -> Iterable[SequenceGroup]:
        """Lets the groups that are ready run here, and returns them.

        Their last blocks come with the step that is being planned.
        """

    def yield_room(self, now: float) -> bool:
        """Gives back the blocks that are kept for the group that began to come last.

        Returns False if no group is on its way.
        """
