"""Sets up OpenTelemetry's metrics: a collector is sent what the API's instruments were told.

It is sent what Prometheus may read as well (metrics.py), while `exported`. Until `configure` has
chosen an exporter, instruments are the API's no-ops. How often values are sent, and whatever else
the specification puts into the environment (OTEL_METRIC_EXPORT_INTERVAL, OTEL_EXPORTER_OTLP_*),
holds here too.
"""

import asyncio
import atexit
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from prometheus_client import CollectorRegistry

from rpc import otlp, telemetry
from rpc.registry_export import RegistryExporter, Source

CHOICES = "none, auto, otlp, otlp=URL, otlp-http or otlp-http=URL"

LAST_EXPORT_S = 4.0
"""For the last values to arrive."""
HURRY_S = 0.5
"""If those before have not."""

_STARTED = time.monotonic()
_exporter: RegistryExporter | None = None  # of the process, once one was chosen


def configure(*, service_name: str, exporter: str) -> None:
    """Starts sending metrics; to be called once in a process.

    Args:
        exporter: "none"; "auto" (what OTEL_METRICS_EXPORTER says, else none); "otlp" (gRPC,
            or what OTEL_EXPORTER_OTLP_PROTOCOL says) and "otlp-http", each to where
            OTEL_EXPORTER_OTLP_ENDPOINT or "=http://HOST:PORT" (of "otlp", always gRPC) says.

    Raises ValueError for any other.
    """
    global _exporter
    chosen = make_exporter(exporter)
    if chosen is None:
        return
    _exporter = RegistryExporter(chosen)
    reader = PeriodicExportingMetricReader(_exporter)
    provider = MeterProvider(
        [reader], resource=telemetry.resource(service_name), shutdown_on_exit=False
    )
    metrics.set_meter_provider(provider)
    # The SDK exports nothing unless an instrument has a value; a scheduler has no other.
    provider.get_meter("signalbox").create_observable_gauge(
        "process.uptime", [_uptime], unit="s", description="Time the process has been running."
    )
    atexit.register(_shut_down, provider, _exporter)


def _shut_down(provider: MeterProvider, exporter: RegistryExporter) -> None:
    """Sends what is the last; does not wait again for a collector that is down."""
    timeout_s = HURRY_S if exporter.has_failed else LAST_EXPORT_S
    provider.shutdown(timeout_millis=timeout_s * 1e3)


def _uptime(_options: CallbackOptions) -> Iterable[Observation]:
    yield Observation(time.monotonic() - _STARTED)


@contextmanager
def exported(registry: CollectorRegistry) -> Iterator[None]:
    """Sends what a registry shows too, and, when the process ends, what it shows at this end."""
    if _exporter is None:
        yield
        return
    source = Source(registry, asyncio.get_running_loop())
    _exporter.add(source)
    try:
        yield
    finally:
        source.close()


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
