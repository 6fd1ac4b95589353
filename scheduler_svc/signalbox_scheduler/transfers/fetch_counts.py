"""Counts what was fetched from one place: a worker's store, or other workers."""

from collections.abc import Iterator
from dataclasses import dataclass

from signalbox_contract.sections.store_moves import MoveResult
from signalbox_rpc.metrics.sample import Sample, counter, counters
from signalbox_scheduler.transfers.pending_transfers import Transfer


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

    def samples(
        self, *, tier: str, num_bytes_out: int, num_failures_out: int = 0
    ) -> Iterator[Sample]:
        """Yields them with what went the other way: to the store, or to other workers."""
        for name, meaning, number in (
            (
                "kv_store_queries",
                "Prompt tokens that were looked up in the tier.",
                self.num_queries,
            ),
            ("kv_store_hits", "Prompt tokens that were fetched from the tier.", self.num_hits),
        ):
            yield counter(name, meaning, number, tier=tier)
        meaning = "Lookups and fetches that took too long."
        yield counter("kv_transfer_timeouts", meaning, self.num_late, tier=tier)
        yield from counters(
            "kv_store_bytes",
            "Bytes that came from the tier, and went there.",
            {"in": self.num_bytes, "out": num_bytes_out},
            by="direction",
            tier=tier,
        )
        yield from counters(
            "kv_store_failures",
            "Moves from the tier, and to it, that failed.",
            {"in": self.num_failures, "out": num_failures_out},
            by="direction",
            tier=tier,
        )

    def add_failure(self, transfer: Transfer, result: MoveResult) -> None:
        """Counts a transfer that has failed, unless it was called off."""
        self.num_failures += bool(result.failed) and transfer.cancelled_at is None

    def add_fetch(self, transfer: Transfer, result: MoveResult, *, num_tokens: int) -> None:
        """Counts the end of a fetch, of whose tokens so many are used."""
        self.num_hits += num_tokens
        self.num_bytes += result.num_bytes
        self.add_failure(transfer, result)
