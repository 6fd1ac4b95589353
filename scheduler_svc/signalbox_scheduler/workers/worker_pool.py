"""The workers that have joined and not left, and what they answer only together."""

from signalbox_scheduler.requests.phases import BlockUnit
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from signalbox_scheduler.workers.engine.step_loop import StepLoop


class StepLoops(list[StepLoop]):
    """The step loops of the workers, in the order in which they joined."""

    @property
    def is_serving(self) -> bool:
        """True if a worker accepts new requests."""
        return any(loop.scheduler.is_accepting for loop in self)

    @property
    def block_unit(self) -> BlockUnit:
        """Size of a block of the first worker; K and V of others may have another type."""
        for loop in self:
            scheduler = loop.scheduler
            return BlockUnit(
                tokens=scheduler.blocks.block_size, num_bytes=scheduler.cost.block_bytes
            )
        return BlockUnit()

    def have_taker(self, group: SequenceGroup) -> bool:
        """Returns whether some worker could take a request, were it alone there."""
        return any(loop.scheduler.can_ever_take(group) for loop in self)

    def takers(self, group: SequenceGroup) -> set[str]:
        """Returns the names of the workers that could take a suspect, were it alone there."""
        if group.suspicion is None:
            return set()
        takers = (loop.scheduler for loop in self if loop.scheduler.can_ever_take(group))
        return {scheduler.worker_name for scheduler in takers}

    @property
    def effective_max_model_len(self) -> int:
        """Tokens of the longest sequence that the largest worker takes; 0 if none takes any."""
        return max((loop.scheduler.effective_max_model_len for loop in self), default=0)

    @property
    def leave_snapshots(self) -> bool:
        """True if some worker has recurrent layers, and looks for prefixes."""
        return any(loop.scheduler.blocks.states.leaves_snapshots for loop in self)

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens with which a worker takes a new group; else below 1."""
        return max((loop.scheduler.most_new_tokens(group) for loop in self), default=0)

    def holder(self, group: SequenceGroup) -> StepLoop | None:
        """Returns where a request runs or is swapped out; None while it waits."""
        if any(seq.status is SequenceStatus.WAITING for seq in group.unfinished):
            return None
        return next((loop for loop in self if loop.scheduler.holds(group)), None)

    def record_end(self, group: SequenceGroup, now: float) -> None:
        """Counts a request that has ended for the worker that it was on."""
        for loop in self:
            if loop.scheduler.worker_name == group.timeline.worker:
                loop.scheduler.request_stats.observe(group)
                loop.scheduler.steps.observe_preemptions(group, now)

    def wake(self) -> None:
        """Lets every step loop look for work."""
        for loop in self:
            loop.wake()
