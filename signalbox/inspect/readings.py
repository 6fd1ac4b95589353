"""Samples of two answers to GetStats: what they count, how fast, and the quantiles between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from signalbox_protos.scheduler.v1 import stats_pb2 as pb


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Quantiles of durations, as exact as the scheduler's buckets; None if there were no values."""

    p50_s: float | None = None
    p99_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One sample of the later answer, and what came since the earlier one."""

    name: str
    labels: dict[str, str]
    value: float
    """The gauge or counter; the number of values of a histogram."""
    per_s: float | None
    """None of a gauge."""
    quantiles: Quantiles
    """Quantiles of the histograms of durations."""


class Readings(list[Reading]):
    """The samples of one part of the scheduler."""

    def find(self, name: str, **labels: str) -> "Readings":
        """Returns the samples of a name that have these labels, whatever others they have."""
        wanted = labels.items()
        return Readings(one for one in self if one.name == name and wanted <= one.labels.items())

    def total(self, name: str, **labels: str) -> float:
        return sum(one.value for one in self.find(name, **labels))

    def per_s(self, name: str, **labels: str) -> float:
        return sum(one.per_s or 0.0 for one in self.find(name, **labels))

    def quantiles(self, name: str) -> Quantiles:
        found = self.find(name)
        return found[0].quantiles if found else Quantiles()


def read(before: Iterable[pb.Sample], after: Iterable[pb.Sample], seconds: float) -> Readings:
    """Compares the samples of two answers, the older first."""
    earlier = {_key(one): one for one in before}
    return Readings(_reading(earlier.get(_key(one), pb.Sample()), one, seconds) for one in after)


def _key(sample: pb.Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())


def _reading(before: pb.Sample, after: pb.Sample, seconds: float) -> Reading:
    kind = after.WhichOneof("value")
    value, since = after.gauge or after.counter, after.counter - before.counter
    if kind == "histogram":
        value = sum(after.histogram.counts)
        since = value - sum(before.histogram.counts)
    return Reading(
        name=after.name,
        labels=dict(after.labels),
        value=value,
        per_s=None if kind == "gauge" else since / seconds,
        quantiles=quantiles(before.histogram, after.histogram),
    )


def quantiles(before: pb.Histogram, after: pb.Histogram) -> Quantiles:
    """Returns the quantiles of the durations that came between two answers."""
    earlier = list(before.counts) or [0] * len(after.counts)
    counts = [count - then for count, then in zip(after.counts, earlier, strict=True)]
    bounds = [bound * after.unit for bound in after.bounds]
    return Quantiles(p50_s=_quantile(counts, bounds, 0.5), p99_s=_quantile(counts, bounds, 0.99))


def _quantile(counts: list[int], bounds: Sequence[float], share: float) -> float | None:
    """Returns a quantile, assuming evenly distributed values within a bucket."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    seen, low = 0, 0.0
    for count, high in zip(counts, bounds, strict=False):
        if seen + count >= wanted:
            return low + (high - low) * (wanted - seen) / count
        seen, low = seen + count, high
    return bounds[-1]
