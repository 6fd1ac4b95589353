"""Sets up OpenTelemetry's metrics: a collector is sent what the API's instruments were told.

Until `configure` has chosen an exporter, instruments are the API's no-ops. How often values are
sent, and whatever else the specification puts into the environment (OTEL_METRIC_EXPORT_INTERVAL,
OTEL_EXPORTER_OTLP_*), holds here too. Prometheus is served apart from this; see metrics.py.
"""

import atexit
import os

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader

from rpc import telemetry

CHOICES = "none, auto, otlp, otlp=URL, otlp-http or otlp-http=URL"
EXPORT_TIMEOUT_S = 2.0
"""A collector that is down must not hold a shutdown for long."""
HTTP_PATH = "/v1/metrics"


def configure(*, service_name: str, exporter: str) -> None:
    """Starts sending metrics; to be called once in a process.

    Args:
        exporter: "none"; "auto" (what OTEL_METRICS_EXPORTER says, else none); "otlp" (gRPC) and
            "otlp-http", each to where OTEL_EXPORTER_OTLP_ENDPOINT or "=http://HOST:PORT" says.

    Raises ValueError for any other.
    """
    chosen = make_exporter(exporter)
    if chosen is None:
        return
    reader = PeriodicExportingMetricReader(chosen)
    provider = MeterProvider(
        [reader], resource=telemetry.resource(service_name), shutdown_on_exit=False
    )
    metrics.set_meter_provider(provider)
    atexit.register(provider.shutdown)


def make_exporter(choice: str) -> MetricExporter | None:
    """Returns the exporter of a name; None exports nothing. Raises ValueError."""
    if choice == "auto":
        choice = os.environ.get("OTEL_METRICS_EXPORTER", "").strip() or "none"
    kind, _, url = choice.partition("=")
    if choice == "none":
        return None
    if kind not in ("otlp", "otlp-http") or choice.endswith("="):
        raise ValueError(f"unknown metrics exporter {choice!r}; use {CHOICES}")
    return _over_grpc(url) if kind == "otlp" else _over_http(url)


def _over_grpc(url: str) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    insecure = not url.startswith("https:") if url else None
    return OTLPMetricExporter(endpoint=url or None, insecure=insecure, timeout=_timeout_s())


def _over_http(url: str) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    has_path = "/" in url.partition("://")[2].rstrip("/")
    endpoint = url if has_path or not url else url.rstrip("/") + HTTP_PATH
    return OTLPMetricExporter(endpoint=endpoint or None, timeout=_timeout_s())


def _timeout_s() -> float | None:
    """Returns None, which lets the SDK look, if the environment has one."""
    names = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
    return None if any(map(os.environ.get, names)) else EXPORT_TIMEOUT_S
