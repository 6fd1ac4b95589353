"""An engine's metrics as objects, in the shape and under the names of vLLM's metrics reader."""

from dataclasses import dataclass

from signalbox_rpc.metrics.histogram import Histogram as Values
from signalbox_rpc.metrics.registry import PREFIXES, VLLM, buckets_of
from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.service.reports import metrics
from signalbox_scheduler.workers.cluster import Cluster

_POSITION = "position"
"""Label of counts that belong together, one after another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One value of a metric; others of the same name have other labels."""

    name: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge(Metric):
    """A number that rises and falls."""

    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter(Metric):
    """A count that only grows."""

    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vector(Metric):
    """Counts by position."""

    values: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Metric):
    """Cumulative counts of observations up to each bound; the last bound is "+Inf"."""

    count: int
    sum: float
    buckets: dict[str, int]


def snapshot(cluster: Cluster) -> list[Metric]:
    """Returns the scheduler's Prometheus metrics, with the prefix "vllm:"."""
    found: list[Metric] = []
    for sample in metrics.samples(cluster):
        if _POSITION not in sample.labels:
            found.append(_metric(sample))
        elif sample.labels[_POSITION] == "0":
            found.append(_vector(sample))
        else:  # its first came before
            vector = found[-1]
            assert isinstance(vector, Vector)
            vector.values.append(_whole(sample))
    return found


def _vector(sample: Sample) -> Vector:
    labels = {name: value for name, value in sample.labels.items() if name != _POSITION}
    return Vector(name=PREFIXES[VLLM] + sample.name, labels=labels, values=[_whole(sample)])


def _whole(sample: Sample) -> int:
    assert not isinstance(sample.value, Values)
    return int(sample.value)


def _metric(sample: Sample) -> Metric:
    kind, name, _, value, labels, unit = sample
    name = PREFIXES[VLLM] + name
    if isinstance(value, Values):
        buckets = {bucket[0]: int(bucket[1]) for bucket in buckets_of(value, unit)}
        return Histogram(
            name=name,
            labels=labels,
            count=buckets["+Inf"],
            sum=value.sum * unit,
            buckets=buckets,
        )
    if kind == "counter":
        number = int(value) if value == int(value) else value
        return Counter(name=name, labels=labels, value=number)  # type: ignore[arg-type]
    return Gauge(name=name, labels=labels, value=value)
