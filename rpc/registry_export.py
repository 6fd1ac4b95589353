"""Sends a collector what Prometheus would read: the families of a service's registry, as OTLP.

One source: whatever a service shows is sent under the same name with the same labels, read at the
same place, so both ways agree and nothing is counted twice. This is OpenTelemetry's MetricProducer,
which its Python SDK has not: an exporter adds the families to what instruments were told. Values
are cumulative, as Prometheus' are; exemplars stay with the instruments'.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.samples import Sample

READ_TIMEOUT_S = 5.0
"""For an event loop to answer; one that does not is asked again at the next export."""
_CUMULATIVE = AggregationTemporality.CUMULATIVE
_SCOPE = InstrumentationScope("signalbox")
_UNITS = {"_seconds": "s", "_bytes": "By"}

Labels = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class Source:
    """A registry, which its service's event loop reads, and what it showed last."""

    registry: CollectorRegistry
    loop: asyncio.AbstractEventLoop | None
    """None once the service has ended."""
    started_ns: int = field(default_factory=time.time_ns)
    _last: list[Family] = field(default_factory=list)

    def read(self) -> list[Family]:
        """Returns what the registry shows; to be called by another thread than the loop's."""
        loop, looked = self.loop, Event()
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just been closed
                loop.call_soon_threadsafe(self._look, looked)
                looked.wait(READ_TIMEOUT_S)
        return self._last

    def close(self) -> None:
        """Keeps what the registry shows now; on the loop, which is about to end."""
        self._look(Event())
        self.loop = None

    def _look(self, looked: Event) -> None:
        self._last = list(self.registry.collect())
        looked.set()


class RegistryExporter(MetricExporter):
    """Sends what registries show beside what it is given."""

    def __init__(self, exporter: MetricExporter) -> None:
        super().__init__(exporter._preferred_temporality, exporter._preferred_aggregation)
        self._exporter = exporter
        self._sources: list[Source] = []
        self.has_failed = False
        """Whether the last export did not arrive."""

    def add(self, source: Source) -> None:
        """Sends what it shows as well, from the next export on."""
        self._sources.append(source)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        shown = [converted(source.read(), since_ns=source.started_ns) for source in self._sources]
        of_process, *others = metrics_data.resource_metrics
        scopes = [*of_process.scope_metrics, *shown]
        data = replace(
            metrics_data, resource_metrics=[replace(of_process, scope_metrics=scopes), *others]
        )
        result = self._exporter.export(data, timeout_millis, **kwargs)
        self.has_failed = result is not MetricExportResult.SUCCESS
        return result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._exporter.shutdown(timeout_millis, **kwargs)


def converted(families: Iterable[Family], *, since_ns: int) -> ScopeMetrics:
    """Returns families as OTLP has them; their counts began at `since_ns`."""
    now_ns = time.time_ns()
    metrics = [
        Metric(one.name, one.documentation, _unit(one.name), _data(one, since_ns, now_ns))
        for one in families
    ]
    return ScopeMetrics(_SCOPE, metrics, schema_url="")


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _data(family: Family, since_ns: int, now_ns: int) -> Sum | Gauge | Histogram:
    if family.type == "histogram":
        return Histogram(list(_histograms(family.samples, since_ns, now_ns)), _CUMULATIVE)
    points = [
        NumberDataPoint(sample.labels, since_ns, now_ns, float(sample.value))
        for sample in family.samples
        if not sample.name.endswith("_created")
    ]
    if family.type == "counter":
        return Sum(points, _CUMULATIVE, is_monotonic=True)
    return Gauge(points)


def _histograms(
    samples: Iterable[Sample], since_ns: int, now_ns: int
) -> Iterator[HistogramDataPoint]:
    """Puts together what Prometheus has as a sample for each bucket, and counts up to there."""
    by_labels: dict[Labels, list[tuple[float, float]]] = {}
    sums: dict[Labels, float] = {}
    for sample in samples:
        labels = tuple(item for item in sample.labels.items() if item[0] != "le")
        if sample.name.endswith("_bucket"):
            bucket = float(sample.labels["le"]), sample.value
            by_labels.setdefault(labels, []).append(bucket)
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    for labels, buckets in by_labels.items():
        bounds, counts = zip(*sorted(buckets), strict=True)
        yield HistogramDataPoint(
            attributes=dict(labels),
            start_time_unix_nano=since_ns,
            time_unix_nano=now_ns,
            count=int(counts[-1]),
            sum=sums[labels],
            bucket_counts=[int(b - a) for a, b in zip((0.0, *counts), counts, strict=False)],
            explicit_bounds=bounds[:-1],  # the last one is infinite
            min=None,  # type: ignore[arg-type]  # optional in OTLP; Prometheus has none
            max=None,  # type: ignore[arg-type]
        )
