"""Metrics as Prometheus reads them: families made of a service's own counts when somebody asks.

Services count in plain numbers and `Histogram`s, and say in one function what those are called; so
nothing is paid for a metric between two scrapes. Names are vLLM's behind a prefix, which may be
vLLM's too, so that dashboards made for it work.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
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

from rpc.histogram import Histogram

F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily, HistogramMetricFamily)

OURS, VLLM = "signalbox", "vllm"
PREFIXES = {OURS: "signalbox_", VLLM: "vllm:"}
PER_NS = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """Where a process shows its metrics, and under which names."""

    port: int | None = None
    """On the service's host; 0 picks a free one, None shows none there."""
    prefix: str = OURS
    socket: str | None = None
    """Unix socket where a router of the same machine reads them too; see `metrics_socket`."""

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65_535:
            raise ValueError(f"metrics_port {self.port} is not in [0, 65535]")
        if self.prefix not in PREFIXES:
            known = " or ".join(PREFIXES)
            raise ValueError(f"metrics_prefix is {self.prefix!r}; use {known}")


NO_METRICS = MetricsConfig()


@dataclass(slots=True)
class Families:
    """The metrics of one look, by name; every sample of a name has the same labels."""

    prefix: str
    _families: dict[str, Metric] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Metric]:
        return iter(self._families.values())

    def gauge(self, name: str, meaning: str, value: float, **labels: str) -> None:
        """Adds a value that rises and falls."""
        family = self._family(GaugeMetricFamily, name, meaning, labels)
        family.add_metric(list(labels.values()), value)

    def counter(self, name: str, meaning: str, value: float, **labels: str) -> None:
        """Adds a count that only grows; its name gets the suffix _total."""
        family = self._family(CounterMetricFamily, name, meaning, labels)
        family.add_metric(list(labels.values()), value)

    def histogram(
        self, name: str, meaning: str, values: Histogram, *, scale: float = 1.0, **labels: str
    ) -> None:
        """Adds a histogram, whose bounds and values are multiplied by `scale`."""
        family = self._family(HistogramMetricFamily, name, meaning, labels)
        buckets = _buckets(values, scale)
        family.add_metric(list(labels.values()), buckets, values.sum * scale)

    def _family(self, kind: type[F], name: str, meaning: str, labels: dict[str, str]) -> F:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = kind(self.prefix + name, meaning, labels=list(labels))
        assert isinstance(family, kind), f"{name} is a {family.type} already"
        return family


Read = Callable[[Families], None]
"""Adds what a service knows of itself."""


class _Service(Collector):
    def __init__(self, read: Read, prefix: str) -> None:
        self._read = read
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        families = Families(self._prefix)
        self._read(families)
        return iter(families)


class _Tasks(Collector):
    """A leak of tasks shows here long before it shows in memory."""

    def collect(self) -> Iterator[Metric]:
        with contextlib.suppress(RuntimeError):  # whoever asks has no event loop
            yield GaugeMetricFamily("asyncio_tasks", "Tasks.", value=len(asyncio.all_tasks()))


def make_registry(read: Read, *, prefix: str = OURS) -> CollectorRegistry:
    """Returns what is shown of a process: its service's metrics, its CPU time, memory, tasks.

    Args:
        read: called at each scrape, on the event loop, so that it may look at whatever lives there.
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
