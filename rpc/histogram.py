"""Counts values in buckets, for services that tell of themselves without keeping the values.

Sums only grow, so that two looks give rates. A bucket remembers the trace of one value that fell
into it (OpenMetrics calls that an exemplar), so that a slow request can be looked at.
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
"""From a millisecond to minutes, five for each factor of ten."""
TOKEN_BOUNDS = tuple(1 << exponent for exponent in range(15))


class Exemplar(NamedTuple):
    """One of the values of a bucket, and the trace that it was seen in."""

    trace_id: str
    value: int


@dataclass(slots=True)
class Histogram:
    """How often values up to each bound were seen, and how often greater ones than the last."""

    bounds: tuple[int, ...]
    counts: list[int] = field(init=False)
    sum: int = 0
    exemplars: dict[int, Exemplar] = field(default_factory=dict)
    """By bucket, the newest."""

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: int, *, times: int = 1, trace_id: str = "") -> None:
        """Takes a value that was seen so often, in a sampled trace if there is one."""
        bucket = bisect_left(self.bounds, value)
        self.counts[bucket] += times
        self.sum += value * times
        if trace_id:
            self.exemplars[bucket] = Exemplar(trace_id, value)


def times() -> Histogram:
    """Of durations in nanoseconds."""
    return Histogram(TIME_BOUNDS_NS)


def token_counts() -> Histogram:
    return Histogram(TOKEN_BOUNDS)
