"""Blocks on their way between workers in simulated time, and when they have arrived."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.simulated_time.event_clock import EventClock
from benchmarks.simulated_time.step_costs import StepCosts
from signalbox_contract.sections.store_moves import Export, Fetch, MoveResult, StoreMoves

CALL_S = 0.002
"""Seconds that a call from worker to worker takes beside its bytes."""


@dataclass(slots=True, eq=False)
class PeerLink:
    """What one worker exports and reads."""

    free_at: float = 0.0
    moves: dict[int, Fetch | Export] = field(default_factory=dict)
    ended: list[MoveResult] = field(default_factory=list)

    def end(self, move_id: int, result: MoveResult) -> None:
        """Ends a move; a no-op if it has ended."""
        if self.moves.pop(move_id, None) is not None:
            self.ended.append(result)

    def pop_ended(self) -> Sequence[MoveResult]:
        ended, self.ended = self.ended, []
        return ended


class PeerLinks:
    """Pairs of an export and a fetch; each end of a link takes one copy at a time."""

    def __init__(self, clock: EventClock, costs: StepCosts) -> None:
        self._clock = clock
        self._costs = costs
        self._exports: dict[bytes, tuple[PeerLink, Export]] = {}
        self._fetches: dict[bytes, tuple[PeerLink, Fetch]] = {}

    def begin(self, link: PeerLink, moves: StoreMoves) -> None:
        """Begins and calls off what a step says."""
        for move_id in moves.cancels:
            link.end(move_id, MoveResult(move_id, 0, failed="cancelled"))
        for export in moves.exports:
            link.moves[export.move_id] = export
            self._exports[export.ticket] = link, export
            self._copy(export.ticket)
        for fetch in moves.fetches:
            assert fetch.source is not None, "there is no store"
            link.moves[fetch.move_id] = fetch
            self._fetches[fetch.source.ticket] = link, fetch
            self._copy(fetch.source.ticket)

    def leave(self, link: PeerLink) -> None:
        """Ends all moves of a worker that is gone; the other workers are told by their plans."""
        link.moves.clear()

    def _copy(self, ticket: bytes) -> None:
        """Begins a copy once both workers have been told."""
        if ticket not in self._exports or ticket not in self._fetches:
            return
        (owner, export), (reader, fetch) = self._exports.pop(ticket), self._fetches.pop(ticket)
        num_bytes = len(export.hashes) * self._costs.block_bytes
        copy_s = CALL_S + num_bytes / self._costs.peer_bytes_per_s
        until = max(self._clock.now, owner.free_at, reader.free_at) + copy_s
        owner.free_at = reader.free_at = until
        num_blocks, duration_ns = len(export.hashes), int(1e9 * copy_s)
        ends = (
            (owner, MoveResult(export.move_id, num_blocks, num_bytes, duration_ns)),
            (reader, MoveResult(fetch.move_id, num_blocks, num_bytes, duration_ns)),
        )
        for link, result in ends:
            self._clock.call_at(until, partial(link.end, result.move_id, result))
