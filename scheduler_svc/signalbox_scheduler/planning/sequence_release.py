"""Ends sequences: at once for the caller; their blocks when no step in flight holds them."""

from collections.abc import Set

from signalbox_contract.errors import Code
from signalbox_contract.updates import FinishReason, RequestFailure
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.planning.draft_planner import DraftPlanner
from signalbox_scheduler.planning.worker_state import WorkerState
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup, SequenceStatus

NO_LONGER_FITS = RequestFailure(
    Code.RESOURCE_EXHAUSTED, "the request no longer fits the worker's KV cache"
)


class SequenceRelease:
    """Ends sequences, and keeps those that have ended while a step in flight holds them.

    A group must be out of the decode batch, whose counters say what is in flight.
    """

    def __init__(
        self,
        *,
        queues: GroupQueues,
        blocks: BlockSpaceManager,
        worker_state: WorkerState,
        drafts: DraftPlanner,
    ) -> None:
        self._queues = queues
        self._blocks = blocks
        self._worker_state = worker_state
        self._drafts = drafts
        self._draining: set[Sequence] = set()
        self.failed: list[SequenceGroup] = []
        """Groups that planning had to end, until `pop_failed`."""

    @property
    def draining(self) -> Set[Sequence]:
        """Sequences that have ended and still hold blocks, for a step in flight holds them."""
        return self._draining

    def end(self, seq: Sequence, reason: FinishReason) -> None:
        """Ends a sequence; its group leaves its queue with the last one."""
        if seq.status is SequenceStatus.SWAPPED:
            self._blocks.free(seq)
        seq.finish(reason)
        self._drafts.forget(seq)
        if seq.num_inflight_tokens:
            self._draining.add(seq)
        else:
            self._release(seq)
        if seq.group.is_finished:
            self._queues.remove(seq.group)
        else:
            self._queues.recount(seq.group)

    def end_all(self, group: SequenceGroup) -> None:
        """Ends what is left of a group by an error, which the caller states."""
        for seq in group.unfinished:
            self.end(seq, FinishReason.ERROR)

    def recount(self, group: SequenceGroup) -> None:
        """Follows a change in how many sequences a group has."""
        self._queues.recount(group)

    def drop(self, seq: Sequence) -> None:
        """Removes a sequence that no step in flight holds, without an update for the router."""
        seq.status = SequenceStatus.FINISHED
        self._release(seq)

    def fail_later(self, group: SequenceGroup, failure: RequestFailure) -> None:
        """Ends a group while a plan is made; `pop_failed` hands it over."""
        group.fail(failure)
        self.end_all(group)
        self.failed.append(group)

    def pop_failed(self) -> list[SequenceGroup]:
        """Returns the groups that planning had to end, each once."""
        failed, self.failed = self.failed, []
        return failed

    def release_answered(self, seq: Sequence) -> None:
        """Gives the blocks of a sequence that has ended back once no step holds it any more."""
        if not seq.num_inflight_tokens:
            self._draining.discard(seq)
            self._release(seq)

    def _release(self, seq: Sequence) -> None:
        self._blocks.free(seq)
        self._worker_state.forget(seq)
