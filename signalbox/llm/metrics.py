"""An engine's metrics as objects, in the shape and under the names of vLLM's metrics reader."""

from dataclasses import dataclass

from signalbox_rpc.metrics.histogram import Histogram as Values
from signalbox_rpc.metrics.registry import PREFIXES, VLLM, buckets_of
from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.service.reports import metrics
from signalbox_scheduler.workers.cluster import Cluster


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
    """Counts in order, as vLLM's metric of speculative decoding; nothing here has this type."""

    values: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram(Metric):
    """Cumulative counts of observations up to each bound; the last bound is "+Inf"."""

    count: int
    sum: float
    buckets: dict[str, int]


def snapshot(cluster: Cluster) -> list[Metric]:
    """Returns the scheduler's Prometheus metrics, with the prefix "vllm:"."""
    return [_metric(sample) for sample in metrics.samples(cluster)]


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
