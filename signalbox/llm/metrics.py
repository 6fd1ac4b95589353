"""An engine's metrics as objects, in the shape and under the names of vLLM's metrics reader."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

from signalbox_rpc.metrics.registry import PREFIXES, VLLM, families
from signalbox_scheduler.cluster import Cluster
from signalbox_scheduler.reports import metrics

Labels = frozenset[tuple[str, str]]


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
    found = families(metrics.samples(cluster), PREFIXES[VLLM])
    return [metric for family in found for metric in _read(family)]


def _read(family: Family) -> Iterator[Metric]:
    name = family.name
    if family.type == "histogram":
        yield from _histograms(family)
    for sample in family.samples:
        if family.type == "gauge":
            yield Gauge(name=name, labels=dict(sample.labels), value=sample.value)
        elif family.type == "counter":
            number = sample.value
            value = int(number) if number == int(number) else number
            yield Counter(name=name, labels=dict(sample.labels), value=value)  # type: ignore[arg-type]


def _histograms(family: Family) -> Iterator[Histogram]:
    samples: defaultdict[Labels, list[Sample]] = defaultdict(list)
    for sample in family.samples:
        samples[frozenset(sample.labels.items() - {("le", sample.labels.get("le"))})].append(sample)
    for labels, found in samples.items():
        buckets = {
            sample.labels["le"]: int(sample.value) for sample in found if "le" in sample.labels
        }
        (total,) = (sample.value for sample in found if sample.name.endswith("_sum"))
        yield Histogram(
            name=family.name,
            labels=dict(labels),
            count=buckets["+Inf"],
            sum=total,
            buckets=buckets,
        )
