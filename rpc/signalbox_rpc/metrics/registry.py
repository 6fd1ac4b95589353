"""Metrics as Prometheus reads them: families made of a service's own counts at each scrape.

The parts of a service count in plain numbers and `Histogram`s, so metrics cost nothing between two
scrapes. Names are vLLM's behind a prefix, which may be vLLM's too, so that dashboards made for vLLM
work.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

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
from signalbox_rpc.metrics.sample import Kind, Sample

OURS, VLLM = "signalbox", "vllm"
PREFIXES = {OURS: "signalbox_", VLLM: "vllm:"}
_FAMILIES: dict[Kind, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


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


Read = Callable[[], Iterable[Sample]]
"""Yields the counts of a service."""


def families(samples: Iterable[Sample], prefix: str) -> Collection[Metric]:
    """Returns the metrics of one scrape; names of OpenTelemetry have no prefix.

    Raises ValueError if samples of one name differ in kind or in the names of their labels.
    """
    found: dict[str, Any] = {}
    forms: dict[str, tuple[Kind, list[str]]] = {}
    for kind, name, meaning, value, labels, unit in samples:
        form = (kind, sorted(labels))
        family = found.get(name)
        if family is None:
            full_name = name if name.startswith("gen_ai_") else prefix + name
            family = found[name] = _FAMILIES[kind](full_name, meaning, labels=form[1])
            forms[name] = form
        elif forms[name] != form:
            raise ValueError(f"samples of {name} differ in kind or labels: {forms[name]}, {form}")
        values = [labels[label] for label in form[1]]
        if isinstance(value, Histogram):
            family.add_metric(values, buckets_of(value, unit), value.sum * unit)
        else:
            family.add_metric(values, value)
    return found.values()


class _Service(Collector):
    def __init__(self, read: Read, prefix: str) -> None:
        self._read = read
        self._prefix = prefix

    def collect(self) -> Iterator[Metric]:
        return iter(families(self._read(), self._prefix))


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
    add_samples(registry, read, prefix=prefix)
    registry.register(_Tasks())
    ProcessCollector(registry=registry)
    return registry


def add_samples(registry: CollectorRegistry, read: Read, *, prefix: str) -> None:
    """Adds the counts of a part to the metrics of its process, as `make_registry` reads them."""
    registry.register(_Service(read, PREFIXES[prefix]))


def buckets_of(
    values: Histogram, scale: float
) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Returns the cumulative counts up to each bound in a metric's unit, with exemplars."""
    bounds = [*(f"{bound * scale:.12g}" for bound in values.bounds), "+Inf"]
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    for i, (bound, count) in enumerate(zip(bounds, accumulate(values.counts), strict=True)):
        if seen := values.exemplars.get(i):
            labels = {"trace_id": seen.trace_id}
            buckets.append((bound, count, Exemplar(labels, seen.value * scale)))
        else:
            buckets.append((bound, count))
    return buckets
