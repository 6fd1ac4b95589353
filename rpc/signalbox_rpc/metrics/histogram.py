"""Counts values in buckets, for services that report metrics without storing the values.

Sums only grow, so that the difference of two scrapes gives a rate. A bucket remembers the trace of
one of its values (an exemplar in OpenMetrics), so that a slow request can be looked up.
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import NamedTuple

MS, S = 1_000_000, 1_000_000_000
TIME_BOUNDS_NS = tuple(
    unit * factor
    for unit in (MS, 10 * MS, 100 * MS, S, 10 * S, 100 * S)
    for factor in (1, 2, 3, 5, 7)
)
"""Bounds from a millisecond to minutes, five for each factor of ten."""
TOKEN_BOUNDS = tuple(1 << exponent for exponent in range(15))


class Exemplar(NamedTuple):
    """One value of a bucket, and the trace that it belongs to."""

    trace_id: str
    value: int


@dataclass(slots=True)
class Histogram:
    """Counts of the values up to each bound, and of those above the last bound."""

    bounds: tuple[int, ...]
    counts: list[int] = field(init=False)
    sum: int = 0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """The newest exemplar of each bucket."""

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: int, *, times: int = 1, trace_id: str = "") -> None:
        """Counts a value `times` times, with the trace that it belongs to if that is sampled."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += times
        self.sum += value * times
        if trace_id:
            self.exemplars[bucket] = Exemplar(trace_id, value)


def times() -> Histogram:
    """Returns a histogram of durations in nanoseconds."""
    return Histogram(TIME_BOUNDS_NS)


def token_counts() -> Histogram:
    return Histogram(TOKEN_BOUNDS)
