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

from rpc import otlp, telemetry

CHOICES = "none, auto, otlp, otlp=URL, otlp-http or otlp-http=URL"


def configure(*, service_name: str, exporter: str) -> None:
    """Starts sending metrics; to be called once in a process.

    Args:
        exporter: "none"; "auto" (what OTEL_METRICS_EXPORTER says, else none); "otlp" (gRPC,
            or what OTEL_EXPORTER_OTLP_PROTOCOL says) and "otlp-http", each to where
            OTEL_EXPORTER_OTLP_ENDPOINT or "=http://HOST:PORT" (of "otlp", always gRPC) says.

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
    is_http = kind == "otlp-http" or (not url and otlp.uses_http("metrics"))
    return _over_http(url) if is_http else _over_grpc(url)


def _over_grpc(url: str) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    insecure = not url.startswith("https:") if url else None
    timeout_s = otlp.timeout_s("metrics")
    return OTLPMetricExporter(endpoint=url or None, insecure=insecure, timeout=timeout_s)


def _over_http(url: str) -> MetricExporter:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    endpoint = otlp.http_endpoint(url, "metrics")
    return OTLPMetricExporter(endpoint=endpoint, timeout=otlp.timeout_s("metrics"))
