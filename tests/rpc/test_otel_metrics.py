"""Metrics reach a collector; one that is down costs seconds at the end."""

import os
import subprocess
import sys
import time

import pytest

from rpc import otel_metrics
from tests.rpc.collector import grpc_collector

SCRIPT = """
import sys
from opentelemetry import metrics
from rpc import otel_metrics
otel_metrics.configure(service_name="test", exporter=sys.argv[1])
metrics.get_meter("m").create_histogram("h", unit="s").record(0.5, {"a": "b"})
"""


def run_with(exporter: str, **environment: str) -> None:
    inherited = {key: v for key, v in os.environ.items() if not key.startswith("OTEL_")}
    subprocess.run(
        [sys.executable, "-c", SCRIPT, exporter], check=True, env=inherited | environment
    )


@pytest.mark.parametrize("exporter", ["prometheus", "otlp=", "none=1", ""])
def test_an_unknown_exporter_is_refused(exporter: str) -> None:
    with pytest.raises(ValueError, match="use none, auto, otlp"):
        otel_metrics.make_exporter(exporter)


def test_the_environment_chooses_unless_a_flag_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert otel_metrics.make_exporter("auto") is None
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "jaeger")
    assert otel_metrics.make_exporter("none") is None
    with pytest.raises(ValueError, match="'jaeger'"):
        otel_metrics.make_exporter("auto")


def test_what_was_told_has_arrived_when_the_process_ends() -> None:
    with grpc_collector() as collector:
        run_with("auto", OTEL_METRICS_EXPORTER="otlp", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    (point,) = collector.metrics["test"]["h"].histogram.data_points
    assert (point.count, point.sum) == (1, 0.5)
    assert collector.metrics["test"]["process.uptime"].gauge.data_points[0].as_double > 0


def test_a_collector_that_is_down_costs_seconds_at_the_end() -> None:
    run_with("none")
    started = time.monotonic()
    run_with("none")
    without_s = time.monotonic() - started
    export_s = max(2.0, 3 * without_s)  # until an export fails
    started = time.monotonic()
    run_with("otlp=http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT=str(export_s))
    assert time.monotonic() - started < without_s + 3 * export_s
