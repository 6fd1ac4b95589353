"""The connector of a worker that has a store, or other workers to exchange KV with.

Results of transfers come with results of steps, so that an empty step is planned now and then while
nothing else is and transfers are under way.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Protocol

from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sections.store_moves import ClearMark, MoveResult
from signalbox_contract.worker_role import WorkerRole
from signalbox_rpc.metrics.sample import Sample, gauge, gauges
from signalbox_scheduler.config import SchedulingSettings
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.block_events import BlockRetracted
from signalbox_scheduler.planning.connector import KVConnector, OnCleared
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.transfers.block_exports import BlockExports, TransferEndpoint
from signalbox_scheduler.transfers.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.transfers.peers import TransferPeer, peer_identity
from signalbox_scheduler.transfers.pending_transfers import PendingTransfers, Transfer, TransferKind
from signalbox_scheduler.transfers.prefix_loader import PrefixLoader
from signalbox_scheduler.transfers.worker_migrations import WorkerMigrations
from signalbox_scheduler.transfers.write_behind import NoWrites, WriteBehind, most_stored

logger = logging.getLogger(__name__)

LOADING_POLL_S = 0.002
"""Least time between empty steps while a request loads."""
POLL_SHARE = 1 / 8
"""Share of the time since a transfer last began or ended that passes between them, if that is more:
an empty step takes time from the processes that move blocks, or compute beside them."""
POLL_S = 0.05
"""Most time between empty steps, and the time while no request waits for transfers."""


class Exchange(Protocol):
    """Interface to the workers of a cluster; `PeerRegistry` is one."""

    exports: list[BlockExports]
    distrusted: DistrustedBlocks
    """Blocks that no worker fetches from a store."""

    def distrust(self, block_hash: BlockHash, source: BlockExports, now: float) -> None:
        """Keeps a block that went wrong on a worker from being used wherever it has gone."""

    def migrate(self, source: WorkerMigrations, now: float) -> None:
        """Begins to move groups of a worker to others that have room, if they should leave."""


class TransferConnector(KVConnector):
    """Loads prefixes from one worker's store and its peers, writes blocks there, moves groups.

    Args:
        exchange: the workers of the cluster.
        wake: makes the worker's driver plan.
    """

    def __init__(self, state: SchedulerState, exchange: Exchange, wake: Callable[[], None]) -> None:
        store = state.config.store
        self.transfers = PendingTransfers(state.blocks.cpu)
        endpoint = TransferEndpoint(
            identity=peer_identity(state.config),
            inflight=state.in_flight,
            cost=state.cost,
            transfers=self.transfers,
            wake=wake,
        )
        self.peer = TransferPeer(endpoint, exchange.exports, blocks=state.blocks)
        self.migrations = WorkerMigrations(state, self.peer)
        self.loading = PrefixLoader(
            state, self.transfers, self.peer.reads, distrusted=exchange.distrusted
        )
        self.has_store = store is not None
        self.write_behind = NoWrites()
        if store is not None:
            self.write_behind = WriteBehind(store, self.transfers, state)
        self._exchange = exchange
        self._state = state
        self._clears: dict[Transfer, OnCleared] = {}
        """Clears of the store that have not ended."""
        self._changed_at = -math.inf
        """Time of the last plan that began a transfer, or result that ended one."""
        self._now = 0.0  # as of the last call that said it
        state.blocks.records_events = True

    # A step

    def begin_step(self, plan: StepPlan, now: float) -> None:
        """Takes the groups that load out of the queue before the plan takes others."""
        self._follow(now)
        self.loading.plan(now)
        self.migrations.plan(now)
        self._exchange.migrate(self.migrations, now)
        plan.has_incoming = self.migrations.has_ready

    def admit_ready(self, now: float) -> Iterable[SequenceGroup]:
        return self.migrations.admit_ready(now)

    def release_reservation(self, now: float) -> bool:
        return self.migrations.release_reservation(now)

    def finish_step(self, plan: StepPlan, now: float) -> None:
        """Gives a filled plan its transfers; a step of a suspect has none."""
        if plan.is_alone:
            return
        self._follow(now)
        self.write_behind.plan(now)
        self.migrations.abort_invalid(now)
        self.peer.exports.plan(now)
        plan.store_moves = self.transfers.pop_section()
        if plan.store_moves is not None:
            self._changed_at = now

    def process(self, results: Iterable[MoveResult], now: float) -> None:
        self._follow(now)
        self._changed_at = now
        for result in results:
            transfer = self.transfers.end(result)
            if transfer is None:
                logger.warning("move %d has ended, which is not under way", result.move_id)
                continue
            result = result._replace(num_blocks=transfer.num_whole(result.num_blocks))
            if transfer.kind is TransferKind.FIND:
                self._found(transfer, result, now)
            elif transfer.kind is TransferKind.FETCH:
                self._fetched(transfer, result, now)
            elif transfer.kind is TransferKind.STORE:
                self.write_behind.stored(transfer, result, now)
            elif transfer.kind is TransferKind.EXPORT:
                self.peer.exports.ended(transfer, result)
            elif transfer.kind is TransferKind.CLEAR:
                self._clears.pop(transfer)(result.failed)

    def _found(self, transfer: Transfer, result: MoveResult, now: float) -> None:
        if not (result.failed or transfer.is_void):
            self.write_behind.know(transfer.hashes[: result.num_blocks])
            self.write_behind.miss(transfer.hashes[result.num_blocks :])
        self.loading.found(transfer, result, now)

    def _fetched(self, transfer: Transfer, result: MoveResult, now: float) -> None:
        from_peer = self.peer.reads.fetched(transfer, result, now)
        self._state.cost.observe_load(
            num_bytes=result.num_bytes,
            seconds=result.duration_ns / 1e9,
            is_whole=not result.failed,
            from_peer=from_peer,
        )
        if not from_peer and not result.failed:
            self.write_behind.miss(transfer.hashes[result.num_blocks :])
        if not self.migrations.fetched(transfer, result, now):
            self.loading.fetched(transfer, result, now, from_peer=from_peer)

    def step_answered(self, now: float) -> None:
        self._follow(now)
        self.migrations.answered()

    def _follow(self, now: float) -> None:
        """Takes what has happened to blocks since the last hook."""
        self._now = now
        for event in self._state.blocks.take_events():
            if isinstance(event, BlockRetracted):
                self._exchange.distrust(event.block_hash, self.peer.exports, now)
            else:
                self.write_behind.follow(event)

    def distrust(self, block_hash: BlockHash, now: float) -> None:
        """Keeps a block that may be wrong from being written, read by others and migrated."""
        self.write_behind.know([block_hash])
        self.peer.exports.take_back(block_hash, now)
        self.migrations.distrust(block_hash, now)

    # Time

    @property
    def next_poll_at(self) -> float:
        if not self.transfers:
            return math.inf
        asked_at = self._state.in_flight.last_planned_at
        is_awaited = self._state.queues.loading or self.migrations.incoming
        wait_s = max(LOADING_POLL_S, POLL_SHARE * (asked_at - self._changed_at))
        return asked_at + (min(wait_s, POLL_S) if is_awaited else POLL_S)

    @property
    def overdue_at(self) -> float:
        return self.transfers.overdue_at

    @property
    def exchanges_groups(self) -> bool:
        return bool(self.migrations.incoming or self.migrations.outgoing)

    # The worker

    def set_role(self, role: WorkerRole) -> None:
        self.migrations.only_prefills = role is WorkerRole.PREFILL
        self.peer.endpoint.wake()

    def drain(self) -> None:
        """Lets no request load any more."""
        self.loading.return_all(self._now)

    def clear(
        self, tenant: str | None, on_cleared: OnCleared, mark: ClearMark | None = None
    ) -> None:
        self.loading.forget_pins()
        if self.has_store:
            self.write_behind.forget()
            if tenant is None:
                on_cleared = partial(self._all_cleared, on_cleared)
            self._clears[self.transfers.clear(tenant, self._now, mark)] = on_cleared
        else:
            self.transfers.void(self._now)
            on_cleared("")

    def _all_cleared(self, on_cleared: OnCleared, fault: str) -> None:
        if not fault:
            self.loading.avoids_store = False
        on_cleared(fault)

    def avoid_store(self) -> None:
        self.loading.forget_pins()
        self.loading.avoids_store = True

    def close(self) -> None:
        self.loading.forget_pins()
        for on_cleared in self._clears.values():
            on_cleared("the worker has left")
        self._clears.clear()

    def samples(self) -> Iterator[Sample]:
        store, rates = self._state.config.store, {}
        exchanges_kv = bool(self.peer.endpoint.identity.kv_format)
        yield gauge(
            "num_requests_loading",
            "Requests whose prefix comes from a worker's store of KV blocks, or from another"
            " worker, or is looked for.",
            len(self._state.queues.loading),
            tier="peer" if store is None else store.kind,
        )
        if exchanges_kv:
            rates["peer"] = self._state.cost.peer_bytes_per_s
        if store is not None:
            rates[store.kind] = self._state.cost.load_bytes_per_s
            yield from self.loading.counts.samples(
                tier=store.kind,
                num_bytes_out=self.write_behind.num_bytes,
                num_failures_out=self.write_behind.num_failures,
            )
        if exchanges_kv:
            yield from self.peer.samples()
        yield from gauges(
            "kv_store_bytes_per_second",
            "Rate at which blocks come from the tier, announced and then followed; 0 is not known.",
            rates,
            by="tier",
        )
        if exchanges_kv:
            yield from self.migrations.samples()

    def check(self) -> None:
        self.transfers.check()
        self.peer.exports.check()
        self.loading.check()
        self.migrations.check()


def check_store(config: SchedulingSettings, capacity: WorkerCapacity) -> None:
    """Raises ValueError if a worker has a store that would not be used, or not be cleared."""
    if capacity.store is None:
        return
    if not (config.prefix_caching and config.cpu_prefix_cache):
        raise ValueError(
            "it has a store of KV blocks, which takes prefix caching in the KV cache and in swap"
            " space; turn prefix_caching and cpu_prefix_cache on, or leave the store out"
        )
    if not most_stored(capacity.num_cpu_blocks):
        raise ValueError(
            f"it has a store of KV blocks, and a swap space of {capacity.num_cpu_blocks} blocks,"
            " too few to move any to the store; raise its --swap-space, or leave the store out"
        )
