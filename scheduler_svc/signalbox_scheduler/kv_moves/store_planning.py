"""The part of a worker's planning for moves: what each plan begins, and what results bring.

A worker without a store, and without peers, has none of it. Results of moves come with results of
steps, so that an empty step is planned now and then while nothing else is and moves are under way.
"""

import logging
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import ClearMark, MoveResult
from signalbox_rpc.metrics.sample import Sample, gauge, gauges
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv_moves.block_exports import PeerIdentity, TransferEndpoint
from signalbox_scheduler.kv_moves.distrusted_blocks import DistrustedBlocks
from signalbox_scheduler.kv_moves.moves_under_way import Move, MoveKind, MovesUnderWay
from signalbox_scheduler.kv_moves.peers import Peers, TransferPeer
from signalbox_scheduler.kv_moves.prefix_loader import PrefixLoader
from signalbox_scheduler.kv_moves.worker_handovers import WorkerHandovers
from signalbox_scheduler.kv_moves.write_behind import WriteBehind
from signalbox_scheduler.planning.bookkeeping import Bookkeeping
from signalbox_scheduler.planning.group_selection import GroupSelection
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.steps_in_flight import StepsInFlight
from signalbox_scheduler.planning.worker_grammars import WorkerGrammars
from signalbox_scheduler.requests.stage_use import StageAccount

logger = logging.getLogger(__name__)

LOADING_POLL_S = 0.002
"""Least time between empty steps while a request loads."""
POLL_SHARE = 1 / 8
"""Share of the time since a move last began or ended that passes between them, if that is more: an
empty step takes time from the processes that move blocks, or compute beside them."""
POLL_S = 0.05
"""Most time between empty steps, and the time while no request waits for moves."""

OnCleared = Callable[[str], None]
"""Called once with why a store could not be cleared, or with an empty text."""


def nothing_waits(_fault: str) -> None:
    """Takes the end of a clear that nothing waits for."""


class StorePlanning:
    """Loads prefixes from one worker's store and its peers, and writes blocks there.

    Args:
        identity: what its peers have to know of it; None if it has none.
    """

    def __init__(
        self,
        store: StoreCapacity | None,
        books: Bookkeeping,
        *,
        group_selection: GroupSelection,
        inflight: StepsInFlight,
        cost: CostModel,
        identity: PeerIdentity | None = None,
        peers: Peers | None = None,
        grammars: WorkerGrammars,
        stages: StageAccount,
    ) -> None:
        self.kind = store.kind if store is not None else "peer"
        self.known_clears = store.clears if store is not None else ()
        """Clears that were known where the store is when the worker joined."""
        self.moves = MovesUnderWay(books.blocks.cpu)
        self.peer: TransferPeer | None = None
        if identity is not None and peers is not None:
            endpoint = TransferEndpoint(
                identity=identity, inflight=inflight, cost=cost, moves=self.moves
            )
            self.peer = TransferPeer(endpoint, peers, blocks=books.blocks)
        self.handovers: WorkerHandovers | None = None
        if self.peer is not None:
            self.handovers = WorkerHandovers(
                books,
                self.peer,
                group_selection=group_selection,
                grammars=grammars,
                cost=cost,
                stages=stages,
            )
        self._distrusted = peers.distrusted if peers is not None else DistrustedBlocks()
        self.loading = PrefixLoader(
            books,
            self.moves,
            group_selection=group_selection,
            cost=cost,
            store_kind=store.kind if store is not None else "",
            peer_reads=self.peer.reads if self.peer is not None else None,
            distrusted=self._distrusted,
        )
        self.write_behind: WriteBehind | None = None
        if store is not None:
            self.write_behind = WriteBehind(store, self.moves, blocks=books.blocks, cost=cost)
            books.sequence_release.on_release = self.write_behind.count_uses
        self._cost = cost
        self._queues = books.queues
        self._blocks = books.blocks
        self._clears: dict[Move, OnCleared] = {}
        """Clears of the store that have not ended."""
        self._asked_at = -math.inf
        self._changed_at = -math.inf
        """Time of the last plan that began a move, or result that ended one."""
        self._now = 0.0  # as of the last call that said it
        # Not a bound method: blocks keep nothing that plans their moves.
        books.blocks.on_retract = partial(StorePlanning._distrust, weakref.proxy(self))

    def samples(self) -> Iterator[Sample]:
        yield gauge(
            "num_requests_loading",
            "Requests whose prefix comes from a worker's store of KV blocks, or from another"
            " worker, or is looked for.",
            len(self._queues.loading),
            tier=self.kind,
        )
        rates = {"peer": self._cost.peer_bytes_per_s} if self.peer is not None else {}
        if self.write_behind is not None:
            rates[self.kind] = self._cost.load_bytes_per_s
            yield from self.loading.counts.samples(
                tier=self.kind,
                num_bytes_out=self.write_behind.num_bytes,
                num_failures_out=self.write_behind.num_failures,
            )
        if self.peer is not None:
            yield from self.peer.samples()
        yield from gauges(
            "kv_store_bytes_per_second",
            "Rate at which blocks come from the tier, announced and then followed; 0 is not known.",
            rates,
            by="tier",
        )
        if self.handovers is not None:
            yield from self.handovers.samples()

    def begin_plan(self, now: float, *, may_begin: bool) -> None:
        """Takes the groups that load out of the queue before the plan takes others."""
        self._now = now
        self.loading.plan(now, may_begin=may_begin)
        if self.handovers is not None:
            self.handovers.plan(now)

    def finish_plan(self, plan: StepPlan, now: float) -> None:
        """Gives a filled plan its moves."""
        if self.write_behind is not None:
            self.write_behind.plan(now)
        if self.handovers is not None:
            self.handovers.drop_left(now)
        if self.peer is not None:
            self.peer.exports.plan(now)
        plan.store_moves = self.moves.pop_section()
        if plan.store_moves is not None:
            self._changed_at = now

    def polls(self, now: float) -> bool:
        """Says whether a step without work is due that asks for the ends of moves."""
        return now >= self.next_poll_at

    @property
    def next_poll_at(self) -> float:
        """Time at which a step is due, if none is planned before; infinite if nothing moves."""
        if not self.moves:
            return math.inf
        is_awaited = self._queues.loading or (self.handovers is not None and self.handovers.coming)
        wait_s = max(LOADING_POLL_S, POLL_SHARE * (self._asked_at - self._changed_at))
        return self._asked_at + (min(wait_s, POLL_S) if is_awaited else POLL_S)

    def asked(self, now: float) -> None:
        """Records that a step is planned, whose result brings the ends of moves."""
        self._asked_at = now

    def process(self, results: Iterable[MoveResult], now: float) -> None:
        """Takes the ends of moves."""
        self._now = self._changed_at = now
        for result in results:
            move = self.moves.end(result)
            if move is None:
                logger.warning("move %d has ended, which is not under way", result.move_id)
                continue
            result = result._replace(num_blocks=min(result.num_blocks, len(move.hashes)))
            if move.kind is MoveKind.FIND:
                self._found(move, result, now)
            elif move.kind is MoveKind.FETCH:
                self._fetched(move, result, now)
            elif self.write_behind is not None and move.kind is MoveKind.STORE:
                self.write_behind.stored(move, result, now)
            elif self.peer is not None and move.kind is MoveKind.LEND:
                self.peer.exports.lent(move, result)
            elif move.kind is MoveKind.CLEAR:
                self._clears.pop(move)(result.failed)

    def _found(self, move: Move, result: MoveResult, now: float) -> None:
        if self.write_behind is not None and not (result.failed or move.is_void):
            self.write_behind.know(move.hashes[: result.num_blocks])
            self.write_behind.miss(move.hashes[result.num_blocks :])
        self.loading.found(move, result, now)

    def _fetched(self, move: Move, result: MoveResult, now: float) -> None:
        from_peer = self.peer is not None and self.peer.reads.fetched(move, result, now)
        self._cost.observe_load(
            num_bytes=result.num_bytes,
            seconds=result.duration_ns / 1e9,
            is_whole=not result.failed,
            from_peer=from_peer,
        )
        if self.write_behind is not None and not from_peer and not result.failed:
            self.write_behind.miss(move.hashes[result.num_blocks :])
        if self.handovers is None or not self.handovers.fetched(move, result, now):
            self.loading.fetched(move, result, now, from_peer=from_peer)

    def drain(self) -> None:
        """Lets no request load any more."""
        self.loading.return_all(self._now)

    def reset(self) -> bool:
        """Forgets what is cached in both pools and the store; False if a request has blocks.

        What is under way comes to nothing.
        """
        self.loading.forget_pins()
        if not self._blocks.reset_prefix_cache():
            return False
        self._clear_store(None, nothing_waits)
        return True

    def clear(
        self, tenant: str | None, on_cleared: OnCleared, mark: ClearMark | None = None
    ) -> None:
        """Empties the store, and lets what is under way come to nothing.

        What the pools hold is forgotten before; see `Scheduler.clear_prefix_cache`.
        """
        self.loading.forget_pins()
        self._clear_store(tenant, on_cleared, mark)

    def _clear_store(
        self, tenant: str | None, on_cleared: OnCleared, mark: ClearMark | None = None
    ) -> None:
        if self.write_behind is None:
            self.moves.void(self._now)
            on_cleared("")
        else:
            self.write_behind.forget()
            self._clears[self.moves.clear(tenant, self._now, mark)] = on_cleared

    def abandon(self) -> None:
        """Gives up what is under way: the worker is gone."""
        self.loading.forget_pins()
        for on_cleared in self._clears.values():
            on_cleared("the worker has left")
        self._clears.clear()

    def _distrust(self, block_hash: BlockHash) -> None:
        """Keeps a block that may be wrong from being written, fetched and lent."""
        if self.write_behind is not None:
            self.write_behind.know([block_hash])
        if self.peer is not None:
            self.peer.retract(block_hash, self._now)
        if self.handovers is not None:
            self.handovers.distrust(block_hash, self._now)
        self._distrusted.add(block_hash)

    def check(self) -> None:
        """Asserts what its parts do."""
        self.moves.check()
        if self.peer is not None:
            self.peer.exports.check()
        self.loading.check()
        if self.handovers is not None:
            self.handovers.check()
