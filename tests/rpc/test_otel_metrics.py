"""Metrics reach a collector; one that is down costs seconds at the end."""

import os
import subprocess
import sys
import time
from concurrent import futures
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as pb
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as pb_grpc

from rpc import otel_metrics

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
    received: list[pb.ExportMetricsServiceRequest] = []

    class Servicer(pb_grpc.MetricsServiceServicer):
        def Export(self, request: pb.ExportMetricsServiceRequest, context: Any) -> Any:
            received.append(request)
            return pb.ExportMetricsServiceResponse()

    server = grpc.server(futures.ThreadPoolExecutor(1))
    pb_grpc.add_MetricsServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        run_with(
            "auto",
            OTEL_METRICS_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{port}",
        )
    finally:
        server.stop(None)
    (resource,) = received[0].resource_metrics
    names = {a.key: a.value.string_value for a in resource.resource.attributes}
    assert names["service.name"] == "test"
    (metric,) = resource.scope_metrics[0].metrics
    (point,) = metric.histogram.data_points
    assert (metric.name, point.count, point.sum) == ("h", 1, 0.5)


def test_a_collector_that_is_down_costs_seconds_at_the_end() -> None:
    run_with("none")
    started = time.monotonic()
    run_with("none")
    without_s = time.monotonic() - started
    started = time.monotonic()
    run_with("otlp=http://127.0.0.1:9")
    assert time.monotonic() - started < without_s + 10
