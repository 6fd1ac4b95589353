"""Counts what was fetched from one place: a worker's store, or other workers."""

from dataclasses import dataclass

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_scheduler.kv_moves.moves_under_way import Move


@dataclass(slots=True)
class FetchCounts:
    """Totals since the worker joined."""

    num_queries: int = 0
    """Tokens asked for."""
    num_hits: int = 0
    """Tokens fetched."""
    num_bytes: int = 0
    num_failures: int = 0
    num_late: int = 0
    """Lookups and fetches that took too long."""

    def add_failure(self, move: Move, result: MoveResult) -> None:
        """Counts a move that has failed, unless it was called off."""
        self.num_failures += bool(result.failed) and move.cancelled_at is None

    def add_fetch(self, move: Move, result: MoveResult, *, num_tokens: int) -> None:
        """Counts the end of a fetch, of whose tokens so many are used."""
        self.num_hits += num_tokens
        self.num_bytes += result.num_bytes
        self.add_failure(move, result)
