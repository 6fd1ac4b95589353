"""What Prometheus may read is what a collector is sent: same names, labels and numbers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    HistogramDataPoint,
    InMemoryMetricReader,
    Metric,
    MetricExporter,
    MetricExportResult,
    MetricsData,
)

from rpc.histogram import Histogram
from rpc.metrics import Families, make_registry
from rpc.registry_export import READ_TIMEOUT_S, RegistryExporter, Source, converted

SINCE_NS = 17


def read(families: Families) -> None:
    families.gauge("running", "Now.", 3, worker="a")
    families.gauge("running", "Now.", 4, worker="b")
    families.counter("tokens", "So far.", 70, code="OK")
    for label, values in (("x", (5, 15, 15, 99)), ("y", ())):
        times = Histogram((10, 20))
        for value in values:
            times.observe(value, trace_id="ab")
        families.histogram("wait_seconds", "Waited.", times, scale=0.1, model_name=label)


def by_name(scope_metrics: Any) -> dict[str, Metric]:
    return {metric.name: metric for metric in scope_metrics.metrics}


def shown() -> dict[str, Metric]:
    return by_name(converted(make_registry(read).collect(), since_ns=SINCE_NS))


def test_gauges_keep_their_labels_and_counters_their_temporality() -> None:
    running, tokens = shown()["signalbox_running"].data, shown()["signalbox_tokens"].data
    assert {(p.attributes["worker"], p.value) for p in running.data_points} == {("a", 3), ("b", 4)}
    (point,) = tokens.data_points
    assert (dict(point.attributes), point.value) == ({"code": "OK"}, 70)
    assert point.start_time_unix_nano == SINCE_NS < point.time_unix_nano
    assert tokens.is_monotonic
    assert tokens.aggregation_temporality is AggregationTemporality.CUMULATIVE


def test_a_histogram_has_a_count_for_each_bucket_and_not_up_to_it() -> None:
    waited = shown()["signalbox_wait_seconds"]
    points: dict[str, HistogramDataPoint] = {
        point.attributes["model_name"]: point for point in waited.data.data_points
    }
    seen = points["x"]
    assert (seen.explicit_bounds, seen.bucket_counts) == ((1.0, 2.0), [1, 2, 1])
    assert (seen.count, seen.sum) == (4, pytest.approx(13.4))
    assert (points["y"].count, points["y"].bucket_counts) == (0, [0, 0, 0])
    assert (waited.unit, waited.description) == ("s", "Waited.")


def test_what_a_process_uses_goes_along() -> None:
    assert shown()["process_resident_memory_bytes"].unit == "By"
    assert shown()["process_cpu_seconds"].data.data_points[0].value > 0


class Kept(MetricExporter):
    """An exporter that keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.data: list[MetricsData] = []
        self.result = MetricExportResult.SUCCESS

    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: Any) -> Any:
        self.data.append(metrics_data)
        return self.result

    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 0, **kwargs: Any) -> None:
        pass


def told() -> MetricsData:
    """Returns what an instrument was told."""
    reader = InMemoryMetricReader()
    MeterProvider([reader]).get_meter("m").create_counter("c").add(1)
    data = reader.get_metrics_data()
    assert data is not None
    return data


def make_exporter(add: Callable[[RegistryExporter], None]) -> tuple[RegistryExporter, Kept]:
    kept = Kept()
    exporter = RegistryExporter(kept)
    add(exporter)
    return exporter, kept


def test_a_collector_that_is_down_is_known_until_it_is_back() -> None:
    exporter, kept = make_exporter(lambda one: None)
    seen = []
    for kept.result in (MetricExportResult.FAILURE, MetricExportResult.SUCCESS):
        assert exporter.export(told()) is kept.result
        seen.append(exporter.has_failed)
    assert seen == [True, False]


async def test_the_loop_that_counts_is_the_one_that_reads() -> None:
    loop = asyncio.get_running_loop()
    seen: list[asyncio.AbstractEventLoop] = []
    registry = make_registry(lambda families: seen.append(asyncio.get_running_loop()))
    exporter, kept = make_exporter(lambda one: one.add(Source(registry, loop)))
    result = await asyncio.to_thread(exporter.export, told())
    assert result is MetricExportResult.SUCCESS
    assert seen == [loop]
    (resource,) = kept.data[0].resource_metrics
    instruments, families = map(by_name, resource.scope_metrics)
    assert instruments.keys() == {"c"}
    assert "asyncio_tasks" in families


def test_what_a_service_showed_last_is_sent_after_its_end() -> None:
    async def serve() -> Source:
        source = Source(make_registry(read), asyncio.get_running_loop())
        source.close()
        return source

    source = asyncio.run(serve())
    exporter, kept = make_exporter(lambda one: one.add(source))
    exporter.export(told())
    (resource,) = kept.data[0].resource_metrics
    assert "signalbox_tokens" in by_name(resource.scope_metrics[1])


def test_a_loop_that_does_not_answer_costs_an_export_its_numbers_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert READ_TIMEOUT_S < 30  # the SDK's, for a whole export
    monkeypatch.setattr("rpc.registry_export.READ_TIMEOUT_S", 0.01)
    loop = asyncio.new_event_loop()
    exporter, kept = make_exporter(lambda one: one.add(Source(make_registry(read), loop)))
    exporter.export(told())  # it does not run
    loop.close()
    exporter.export(told())
    for data in kept.data:
        instruments, families = map(by_name, data.resource_metrics[0].scope_metrics)
        assert (instruments.keys(), families) == ({"c"}, {})
