"""Samples of two answers to GetStats: what they count, how fast, and the quantiles between them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from signalbox_protos.scheduler.v1 import sample_pb2 as pb


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
    per_s: float | None = None
    """None of a gauge."""
    p50: float | None = None
    """Quantiles of a histogram, in the metric's unit."""
    p99: float | None = None


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
        """Returns those of a histogram of durations."""
        found = self.find(name)
        return Quantiles(p50_s=found[0].p50, p99_s=found[0].p99) if found else Quantiles()


def read(before: Iterable[pb.Sample], after: Iterable[pb.Sample], seconds: float) -> Readings:
    """Compares the samples of two answers, the older first."""
    earlier = {_key(one): one for one in before}
    return Readings(_reading(earlier.get(_key(one), pb.Sample()), one, seconds) for one in after)


def _key(sample: pb.Sample) -> tuple[str, frozenset[tuple[str, str]]]:
    return sample.name, frozenset(sample.labels.items())


def _reading(before: pb.Sample, after: pb.Sample, seconds: float) -> Reading:
    name, labels = after.name, dict(after.labels)
    if after.WhichOneof("value") == "gauge":
        return Reading(name=name, labels=labels, value=after.gauge)
    value, earlier = after.counter, before.counter
    if after.HasField("histogram"):
        value, earlier = sum(after.histogram.counts), sum(before.histogram.counts)
    found = quantiles(before.histogram, after.histogram)
    return Reading(
        name=name,
        labels=labels,
        value=value,
        per_s=(value - earlier) / seconds,
        p50=found.p50_s,
        p99=found.p99_s,
    )


def quantiles(before: pb.Histogram, after: pb.Histogram) -> Quantiles:
    """Returns the quantiles of the values that came between two answers."""
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
