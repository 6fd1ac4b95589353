"""Metrics as Prometheus reads them: families made of a service's own counts at each scrape.

Services count in plain numbers and `Histogram`s and name them in one function, so metrics cost
nothing between two scrapes. Names are vLLM's behind a prefix, which may be vLLM's too, so that
dashboards made for vLLM work.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from signalbox_rpc.metrics.histogram import Histogram
from signalbox_rpc.metrics.sample import PER_NS as PER_NS
from signalbox_rpc.metrics.sample import Kind, Sample

F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily)

OURS, VLLM = "signalbox", "vllm"
PREFIXES = {OURS: "signalbox_", VLLM: "vllm:"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Addresses where a process shows its metrics, and the prefix of their names."""

    port: int | None = None
    """Port on the service's host; 0 picks a free one, None opens none."""
    prefix: str = OURS
    socket: str | None = None
    """Unix socket where a router of the same machine reads them too; see `metrics_socket`."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the port answers in a request's `Host`; see `host_check`."""


@dataclass(slots=True)
class Families:
    """The metrics of one scrape, by name; every sample of a name has the same labels."""

    prefix: str
    _families: dict[str, Metric] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def add(self, samples: Iterable[Sample]) -> None:
        """Adds what a part yields."""
        for kind, name, meaning, value, labels, unit in samples:
            if isinstance(value, Histogram):
                self.histogram(name, meaning, value, scale=unit, **labels)
            elif kind is Kind.GAUGE:
                self.gauge(name, meaning, value, **labels)
            else:
                self.counter(name, meaning, value, **labels)

    def gauge(self, name: str, meaning: str, value: float, **labels: str) -> None:
        """Adds a gauge."""
        family = self._family(GaugeMetricFamily, name, meaning, labels)
        family.add_metric(list(labels.values()), value)

    def counter(self, name: str, meaning: str, value: float, **labels: str) -> None:
        """Adds a counter; its name gets the suffix _total."""
        family = self._family(CounterMetricFamily, name, meaning, labels)
        family.add_metric(list(labels.values()), value)

    def histogram(
        self,
        name: str,
        meaning: str,
        values: Histogram,
        *,
        scale: float = 1.0,
        prefix: str | None = None,
        **labels: str,
    ) -> None:
        """Adds a histogram; its bounds and values are multiplied by `scale`.

        Args:
            prefix: of the name; None is that of the service's metrics.
        """
        family = self._family(HistogramMetricFamily, name, meaning, labels, prefix)
        buckets = _buckets(values, scale)
        family.add_metric(list(labels.values()), buckets, values.sum * scale)

    def _family(
        self,
        kind: type[F],
        name: str,
        meaning: str,
        labels: dict[str, str],
        prefix: str | None = None,
    ) -> F:
        family = self._families.get(name)
        if family is None:
            full_name = (self.prefix if prefix is None else prefix) + name
            family = self._families[name] = kind(full_name, meaning, labels=list(labels))
        assert isinstance(family, kind), f"{name} is a {family.type} already"
        return family


Read = Callable[[Families], None]
"""Adds the metrics of a service."""


class _Service(Collector):
    def __init__(self, read: Read, prefix: str) -> None:
        self._read = read
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        families = Families(self._prefix)
        self._read(families)
        return iter(families)


class _Tasks(Collector):
    """Counts asyncio tasks: a leak shows in this number long before it shows in memory."""

    def collect(self) -> Iterator[Metric]:
        with contextlib.suppress(RuntimeError):  # scraped from a thread without an event loop
            yield GaugeMetricFamily("asyncio_tasks", "Tasks.", value=len(asyncio.all_tasks()))


def make_registry(read: Read, *, prefix: str = OURS) -> CollectorRegistry:
    """Returns the metrics of a process: its service's, its CPU time, memory and tasks.

    Args:
        read: called at each scrape, on the event loop, so that it may read all state there.
        prefix: one of PREFIXES.
    """
    registry = CollectorRegistry()
    registry.register(_Service(read, PREFIXES[prefix]))
    registry.register(_Tasks())
    ProcessCollector(registry=registry)
    return registry


def _buckets(
    values: Histogram, scale: float
) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    bounds = [*(f"{bound * scale:.12g}" for bound in values.bounds), "+Inf"]
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for i, (bound, count) in enumerate(zip(bounds, accumulate(values.counts), strict=True)):
        if seen := values.exemplars.get(i):
            labels = {"trace_id": seen.trace_id}
            buckets.append((bound, count, Exemplar(labels, seen.value * scale)))
        else:
            buckets.append((bound, count))
    return buckets
