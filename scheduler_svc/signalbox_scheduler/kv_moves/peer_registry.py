"""The workers of a cluster that exchange KV, and which running groups go from which to which.

Groups of a draining worker go to any with room, and so do those of a worker that only computes
prompts; rebalancing moves those of a busy one to one with less to do.
"""

from collections.abc import Callable

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv_moves.block_exports import BlockExports
from signalbox_scheduler.kv_moves.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.kv_moves.peers import peer_identity
from signalbox_scheduler.kv_moves.transfer_connector import TransferConnector
from signalbox_scheduler.kv_moves.worker_handovers import MAX_LEAVING, WorkerHandovers
from signalbox_scheduler.planning.connector import KVConnector
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup

REBALANCE_S = 0.1
"""Time between two looks at whether another worker has less to do."""
LEAST_SURPLUS = 2
SURPLUS_SHARE = 0.25
"""A worker hands groups over to one that has fewer sequences by more than the first of these, and
by more than the second of its own: what ends here and there sets nothing moving."""
LEAST_GAIN = 0.1
"""Share of a step's time by which the other worker's step has to be shorter."""


class PeerRegistry:
    """The workers, and the connectors of those that have a store or each other."""

    def __init__(self) -> None:
        self.exports: list[BlockExports] = []
        """Those of the workers whose connector moves KV, in the order in which they got it."""
        self.distrusted = DistrustedBlocks()
        self._wakes: dict[SchedulerState, Callable[[], None]] = {}
        self._connectors: dict[SchedulerState, TransferConnector] = {}

    def join(self, worker: SchedulerState, wake: Callable[[], None]) -> None:
        """Adds a worker; it, and others that were alone until now, get connectors.

        Args:
            wake: makes the worker's driver plan.
        """
        self._wakes[worker] = wake
        for one in self._wakes:
            one.connector = self.connector_for(one)

    def connector_for(self, worker: SchedulerState) -> KVConnector:
        """Returns the connector that a worker needs: one that moves nothing if it is alone.

        A connector that moves KV is kept, though the worker may be alone again.
        """
        connector = self._connectors.get(worker)
        if connector is not None:
            return connector
        has_store = worker.config.store is not None and worker.config.cache.has_cpu_cache
        if not (has_store or self._has_peer(worker)):
            return worker.connector
        connector = TransferConnector(worker, self, self._wakes[worker])
        self._connectors[worker] = connector
        self.exports.append(connector.peer.exports)
        return connector

    def _has_peer(self, worker: SchedulerState) -> bool:
        identity = peer_identity(worker.config)
        others = (other for other in self._wakes if other is not worker)
        return any(identity.can_read(peer_identity(other.config)) for other in others)

    def leave(self, worker: SchedulerState, now: float) -> None:
        """Takes a worker out that is gone, whose moves end with it; its groups are where they
        were."""
        del self._wakes[worker]
        connector = self._connectors.pop(worker, None)
        if connector is None:
            return
        exports = connector.peer.exports
        self.exports.remove(exports)
        exports.leave(now)
        connector.peer.reads.leave(now)
        for other in self._connectors.values():
            other.peer.reads.forget(exports)
        handovers = connector.handovers
        for handover in [*handovers.coming.values(), *handovers.leaving.values()]:
            handover.give_up(now)

    def distrust(self, block_hash: BlockHash, source: BlockExports, now: float) -> None:
        """Keeps a block that went wrong on a worker from being used wherever it has gone."""
        self.distrusted.add(block_hash)
        for connector in list(self._connectors.values()):
            exports = connector.peer.exports
            if exports is source:
                connector.distrust(block_hash, now)
            elif connector.peer.reads.lose(block_hash, source, now):
                self.distrust(block_hash, exports, now)

    def migrate(self, source: WorkerHandovers, now: float) -> None:
        """Begins to move groups of a worker to others that have room, if they should leave."""
        queues = source.queues
        leaves = source.only_prefills or not queues.is_accepting
        if leaves and queues.running:
            self._hand_over(source, queues.running, now)
        elif queues.swapped and not source.leaving:
            # What would yield next, so that swapped groups come back, if another worker has room.
            self._hand_over(source, queues.running[-1:], now)
        elif now >= source.rebalance_at:
            source.rebalance_at = now + REBALANCE_S
            self._rebalance(source, now)

    def _hand_over(self, source: WorkerHandovers, groups: list[SequenceGroup], now: float) -> None:
        for group in groups:
            if len(source.leaving) >= MAX_LEAVING:
                return
            if source.may_try(group) and not self._begin_anywhere(group, source, now):
                source.retry_later(group, now)

    @property
    def _workers(self) -> list[WorkerHandovers]:
        return [connector.handovers for connector in self._connectors.values()]

    def _begin_anywhere(self, group: SequenceGroup, owner: WorkerHandovers, now: float) -> bool:
        """Begins to hand a group over to the worker with most room that takes it, if any does.

        A worker that computes prompts is the last choice, and no choice of another one.
        """
        takers = [
            worker
            for worker in self._workers
            if worker is not owner and not (owner.only_prefills and worker.only_prefills)
        ]
        takers.sort(key=lambda worker: (worker.only_prefills, -worker.blocks.gpu.num_free))
        return any(taker.reserve(group, owner, now) for taker in takers)

    def _rebalance(self, owner: WorkerHandovers, now: float) -> None:
        """Begins to hand a group over to the worker with fewest sequences, if that pays.

        One group at a time goes from a worker to another.
        """
        takers = [worker for worker in self._workers if _may_rebalance(owner, worker, now)]
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
