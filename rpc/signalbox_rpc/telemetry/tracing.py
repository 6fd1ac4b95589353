"""Sets up tracing: the OpenTelemetry SDK, its exporter, W3C propagation.

Until `configure` has chosen an exporter, spans are the API's no-ops. Span names and attributes
belong to the packages that make them. The environment variables of OpenTelemetry's specification
(OTEL_TRACES_SAMPLER, OTEL_BSP_*, OTEL_EXPORTER_OTLP_*, ...) apply here too.
"""

import atexit
import os
from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import (
    OTEL_SERVICE_NAME,
    OTEL_SPAN_EVENT_COUNT_LIMIT,
    OTEL_SPAN_LINK_COUNT_LIMIT,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from signalbox_rpc.telemetry.span_exporters import HastyExporter, make_exporter

MAX_LINKS = 4096
"""Most links of a span. A step has a link to each of its requests, which may be more than the SDK's
128."""
MAX_EVENTS = 1024
"""Most events of a span. The chunks of a long prompt are events of its prefill."""
LAST_EXPORTS_S = 1.0
"""Seconds at a process's end in which exports may begin; each may take otlp.EXPORT_TIMEOUT_S."""

_tracer = trace.get_tracer("signalbox")  # once: the SDK makes another at each call
_propagator = TraceContextTextMapPropagator()


def configure(*, service_name: str, exporter: str) -> None:
    """Starts exporting spans; to be called once in a process.

    Args:
        service_name: OTEL_SERVICE_NAME has precedence; `signalbox.service` is always this.
        exporter: see `span_exporters.make_exporter`.

    Raises ValueError if there is no such exporter.
    """
    span_exporter = make_exporter(exporter)
    if span_exporter is None:
        return
    hasty = HastyExporter(span_exporter)
    provider = TracerProvider(
        resource=resource(service_name), span_limits=_limits(), shutdown_on_exit=False
    )
    provider.add_span_processor(BatchSpanProcessor(hasty))
    trace.set_tracer_provider(provider)
    atexit.register(_shut_down, provider, hasty)


def _shut_down(provider: TracerProvider, exporter: HastyExporter) -> None:
    """Exports the pending spans; gives up after seconds if the collector is down or too slow."""
    exporter.hurry(within_s=LAST_EXPORTS_S)
    provider.shutdown()


def resource(service_name: str) -> Resource:
    """Returns the resource that describes this process in telemetry."""
    name = os.environ.get(OTEL_SERVICE_NAME) or service_name
    return Resource.create({"service.name": name, "signalbox.service": service_name})


def _limits() -> SpanLimits:
    """Returns our limits; None, for a limit that the environment sets, lets the SDK read it."""
    links, events = map(os.environ.get, (OTEL_SPAN_LINK_COUNT_LIMIT, OTEL_SPAN_EVENT_COUNT_LIMIT))
    return SpanLimits(
        max_links=None if links else MAX_LINKS, max_events=None if events else MAX_EVENTS
    )


def get_tracer() -> trace.Tracer:
    """Returns the tracer of this process."""
    return _tracer


def inject(context: Context | None = None) -> tuple[str, str]:
    """Returns (traceparent, tracestate) of the current or the given context; "" where absent."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context)
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


def extract(traceparent: str, tracestate: str = "") -> Context:
    """Returns the context to start child spans in; an invalid traceparent gives an empty one."""
    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    return _propagator.extract({key: value for key, value in carrier.items() if value}, Context())


def extract_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """Returns the tracing context in a call's metadata."""
    found = {key: value for key, value in metadata or () if isinstance(value, str)}
    return extract(found.get("traceparent", ""), found.get("tracestate", ""))
