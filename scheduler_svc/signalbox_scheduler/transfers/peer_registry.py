"""The workers of a cluster that exchange KV, and which running groups go from which to which.

Groups of a draining worker go to any with room, and so do those of a worker that only computes
prompts; rebalancing moves those of a busy one to one with less to do.
"""

from collections.abc import Callable

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.planning.connector import KVConnector
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.transfers.block_exports import BlockExports
from signalbox_scheduler.transfers.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.transfers.peers import peer_identity
from signalbox_scheduler.transfers.transfer_connector import TransferConnector
from signalbox_scheduler.transfers.worker_migrations import MAX_OUTGOING, WorkerMigrations

REBALANCE_S = 0.1
"""Time between two looks at whether another worker has less to do."""
LEAST_SURPLUS = 2
SURPLUS_SHARE = 0.25
"""A worker migrates groups to one that has fewer sequences by more than the first of these, and
by more than the second of its own: what ends here and there sets nothing moving."""
LEAST_GAIN = 0.1
"""Share of a step's time by which the other worker's step has to be shorter."""


class PeerRegistry:
    """The workers, and the connectors of those that have a store or each other."""

    def __init__(self) -> None:
        self.exports: list[BlockExports] = []
        """Exports of the workers whose connector moves KV, in the order in which they got it."""
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
        return any(identity.has_format_of(peer_identity(other.config)) for other in others)

    def leave(self, worker: SchedulerState, now: float) -> None:
        """Takes a worker out that is gone, whose transfers end with it; its groups are where they
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
        migrations = connector.migrations
        for migration in [*migrations.incoming.values(), *migrations.outgoing.values()]:
            migration.abort(now)

    def distrust(self, block_hash: BlockHash, source: BlockExports, now: float) -> None:
        """Keeps a block that went wrong on a worker from being used wherever it has gone."""
        self.distrusted.add(block_hash)
        for connector in list(self._connectors.values()):
            exports = connector.peer.exports
            if exports is source:
                connector.distrust(block_hash, now)
            elif connector.peer.reads.lose(block_hash, source, now):
                self.distrust(block_hash, exports, now)

    def avoid(self, worker: str) -> None:
        """Lets no other worker read blocks of one, or take groups of it, until it joins again.

        A fetch under way goes on.
        """
        for connector in self._connectors.values():
            endpoint = connector.peer.endpoint
            if endpoint.identity.address == worker:
                endpoint.is_avoided = True

    def migrate(self, source: WorkerMigrations, now: float) -> None:
        """Begins to move groups of a worker to others that have room, if they should leave."""
        queues = source.queues
        leaves = source.only_prefills or not queues.is_accepting
        if leaves and queues.running:
            self._migrate(source, queues.running, now)
        elif queues.swapped and not source.outgoing:
            # What would yield next, so that swapped groups come back, if another worker has room.
            self._migrate(source, queues.running[-1:], now)
        elif now >= source.rebalance_at:
            source.rebalance_at = now + REBALANCE_S
            self._rebalance(source, now)

    def _migrate(self, source: WorkerMigrations, groups: list[SequenceGroup], now: float) -> None:
        for group in groups:
            if len(source.outgoing) >= MAX_OUTGOING:
                return
            if source.may_try(group) and not self._begin_anywhere(group, source, now):
                source.retry_later(group, now)

    @property
    def _workers(self) -> list[WorkerMigrations]:
        return [connector.migrations for connector in self._connectors.values()]

    def _begin_anywhere(self, group: SequenceGroup, source: WorkerMigrations, now: float) -> bool:
        """Begins to migrate a group to the worker with most room that takes it, if any does.

        A worker that computes prompts is the last choice, and no choice of another one.
        """
        destinations = [
            worker
            for worker in self._workers
            if worker is not source and not (source.only_prefills and worker.only_prefills)
        ]
        destinations.sort(key=lambda worker: (worker.only_prefills, -worker.blocks.gpu.num_free))
        return any(destination.reserve(group, source, now) for destination in destinations)

    def _rebalance(self, source: WorkerMigrations, now: float) -> None:
        """Begins to migrate a group to the worker with fewest sequences, if that pays.

        One group at a time goes from a worker to another.
        """
        destinations = [worker for worker in self._workers if _may_rebalance(source, worker, now)]
        if source.only_prefills or not destinations:
            return
        destination = min(destinations, key=lambda worker: worker.num_seqs)
        surplus = source.num_seqs - destination.num_seqs
        if surplus <= max(LEAST_SURPLUS, SURPLUS_SHARE * source.num_seqs):
            return
        if any(migration.destination is destination for migration in source.outgoing.values()):
            return
        if destination.takes_waiting:
            return
        for group in reversed(source.queues.running):
            fits = 2 * group.num_reserved_sequences <= surplus and source.may_try(group)
            if fits and _pays(group, source, destination):
                if not destination.reserve(group, source, now, is_urgent=False):
                    source.retry_later(group, now)
                return


def _may_rebalance(source: WorkerMigrations, destination: WorkerMigrations, now: float) -> bool:
    """Says whether a worker takes groups of another only because it has fewer."""
    if destination is source or destination.only_prefills or not destination.queues.is_accepting:
        return False
    reader, owner = destination.peer, source.peer
    if not reader.endpoint.can_read(owner.endpoint) or reader.reads.avoids(owner.exports, now):
        return False
    # Else the destination would run out of blocks first, and hand groups back.
    return destination.blocks.gpu.share_in_use <= source.blocks.gpu.share_in_use


def _pays(group: SequenceGroup, source: WorkerMigrations, destination: WorkerMigrations) -> bool:
    """Says whether a migration saves the sequences of both workers more time than it takes them.

    The sequences that move save the difference between the steps of both workers with each token;
    what stays behind saves, in sum, as much. A group is expected to generate as many tokens as it
    has so far, within its limit; each time that it has moved before halves that, so that it
    moves a few times at most."""
    seqs = group.unfinished
    source_s = source.cost.decode_s(source.num_seqs)
    destination_s = destination.cost.decode_s(destination.num_seqs + len(seqs))
    if destination.num_seqs and not destination_s:  # the first that comes shows it
        return False
    step_s = source_s - destination_s
    num_tokens = min(
        min(len(seq.output_token_ids), group.max_length - seq.num_tokens) for seq in seqs
    )
    saved_s = 2 * step_s * len(seqs) * (num_tokens >> group.num_migrations)
    num_blocks = source.blocks.num_distinct_blocks(group)
    move_s = source.cost.load_s(num_blocks, from_peer=True)
    return step_s > LEAST_GAIN * source_s and saved_s > move_s * (
        source.num_seqs + destination.num_seqs
    )
