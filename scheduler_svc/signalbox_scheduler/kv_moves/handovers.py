"""Chooses which running groups go from which worker to which.

Those of a draining worker go to any with room; rebalancing moves those of a busy one to one with
less to do.
"""

from dataclasses import dataclass, field

from signalbox_scheduler.kv_moves.worker_handovers import WorkerHandovers
from signalbox_scheduler.requests.sequence_group import SequenceGroup

LEAST_SURPLUS = 2
SURPLUS_SHARE = 0.25
"""A worker hands groups over to one that has fewer sequences by more than the first of these, and
by more than the second of its own: what ends here and there sets nothing moving."""
LEAST_GAIN = 0.1
"""Share of a step's time by which the other worker's step has to be shorter."""


@dataclass(slots=True)
class Handovers:
    """The workers of the cluster that hand groups over, in the order in which they joined."""

    members: list[WorkerHandovers] = field(default_factory=list)

    def join(self, worker: WorkerHandovers) -> None:
        self.members.append(worker)
        worker.find_taker = self.begin_anywhere
        worker.rebalance = self.rebalance

    def leave(self, worker: WorkerHandovers, now: float) -> None:
        """Takes a worker out that is gone; its groups are where they were."""
        self.members.remove(worker)
        for handover in [*worker.coming.values(), *worker.leaving.values()]:
            handover.give_up(now)

    def begin_anywhere(self, group: SequenceGroup, owner: WorkerHandovers, now: float) -> bool:
        """Begins to hand a group over to the worker with most room that takes it, if any does.

        A worker that computes prompts is the last choice, and no choice of another one.
        """
        takers = [
            worker
            for worker in self.members
            if worker is not owner and not (owner.only_prefills and worker.only_prefills)
        ]
        takers.sort(key=lambda worker: (worker.only_prefills, -worker.blocks.gpu.num_free))
        return any(taker.reserve(group, owner, now) for taker in takers)

    def rebalance(self, owner: WorkerHandovers, now: float) -> None:
        """Begins to hand a group over to the worker with fewest sequences, if that pays.

        One group at a time goes from a worker to another.
        """
        takers = [worker for worker in self.members if _may_rebalance(owner, worker, now)]
        if owner.only_prefills or not takers:
            return
        taker = min(takers, key=lambda worker: worker.num_seqs)
        surplus = owner.num_seqs - taker.num_seqs
        if surplus <= max(LEAST_SURPLUS, SURPLUS_SHARE * owner.num_seqs):
            return
        if any(handover.taker is taker for handover in owner.leaving.values()):
            return
        if taker.takes_waiting:
            return
        for group in reversed(owner.queues.running):
            fits = 2 * group.num_reserved_sequences <= surplus and owner.may_try(group)
            if fits and _pays(group, owner, taker):
                if not taker.reserve(group, owner, now, is_urgent=False):
                    owner.retry_later(group, now)
                return


def _may_rebalance(owner: WorkerHandovers, taker: WorkerHandovers, now: float) -> bool:
    """Says whether a worker takes groups of another only because it has fewer."""
    if taker is owner or taker.only_prefills or not taker.queues.is_accepting:
        return False
    if not taker.peer.can_read(owner.peer) or taker.peer.reads.avoids(owner.peer.exports, now):
        return False
    # Else the taker would run out of blocks first, and hand groups back.
    return taker.blocks.gpu.share_in_use <= owner.blocks.gpu.share_in_use


def _pays(group: SequenceGroup, owner: WorkerHandovers, taker: WorkerHandovers) -> bool:
    """Says whether a handover saves the sequences of both workers more time than it takes them.

    The sequences that move save the difference between the steps of both workers with each token;
    what stays behind saves, in sum, as much. A group is expected to generate as many tokens as it
    has so far, within its limit; each time that it has moved before halves that, so that it moves
    a few times at most.
    """
    seqs = group.unfinished
    owner_s = owner.cost.decode_s(owner.num_seqs)
    taker_s = taker.cost.decode_s(taker.num_seqs + len(seqs))
    if taker.num_seqs and not taker_s:  # the first that comes shows it
        return False
    step_s = owner_s - taker_s
    num_tokens = min(
        min(len(seq.output_token_ids), group.max_length - seq.num_tokens) for seq in seqs
    )
    saved_s = 2 * step_s * len(seqs) * (num_tokens >> group.num_handovers)
    num_blocks = len(owner.blocks.distinct_blocks(group))
    move_s = owner.cost.load_s(num_blocks, from_peer=True)
    return step_s > LEAST_GAIN * owner_s and saved_s > move_s * (owner.num_seqs + taker.num_seqs)
