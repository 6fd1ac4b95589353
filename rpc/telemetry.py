"""Sets up tracing: the OpenTelemetry SDK, an exporter, W3C propagation.

Until `configure` has chosen an exporter, spans are the API's no-ops. Span names and attributes
belong to the packages that make them.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

EXPORT_TIMEOUT_S = 2
"""A collector that is down must not hold a shutdown for long."""

_propagator = TraceContextTextMapPropagator()


def configure(*, service_name: str, exporter: str) -> None:
    """Starts exporting spans; to be called once in a process.

    Args:
        exporter: "none"; "console" (standard error); "otlp" (where the environment variable
            OTEL_EXPORTER_OTLP_ENDPOINT says) or "otlp=http://HOST:PORT"; "file=PATH", to which
            one JSON object a line is appended.

    Raises ValueError for any other.
    """
    span_exporter = _make_exporter(exporter)
    if span_exporter is None:
        return
    provider = TracerProvider(resource=Resource.create({"service.name": service_name}))
    provider.add_span_processor(
        BatchSpanProcessor(span_exporter, export_timeout_millis=EXPORT_TIMEOUT_S * 1000)
    )
    trace.set_tracer_provider(provider)


def shutdown() -> None:
    """Exports what is pending; also runs at interpreter exit."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


def get_tracer() -> trace.Tracer:
    """Returns the tracer of this process."""
    return trace.get_tracer("signalbox")


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
    """Returns the context that a call's metadata carries."""
    found = {key: value for key, value in metadata or () if isinstance(value, str)}
    return extract(found.get("traceparent", ""), found.get("tracestate", ""))


def _make_exporter(exporter: str) -> SpanExporter | None:
    kind, _, target = exporter.partition("=")
    match kind, target:
        case "none", "":
            return None
        case "console", "":
            return ConsoleSpanExporter(out=sys.stderr, formatter=_line)
        case "otlp", _:
            return OTLPSpanExporter(
                endpoint=target or None,
                insecure=not target.startswith("https:") if target else None,
                timeout=EXPORT_TIMEOUT_S,
            )
        case "file", path if path:
            stream = Path(path).open("a", buffering=1, encoding="utf-8")  # noqa: SIM115
            return ConsoleSpanExporter(out=stream, formatter=_line)
    raise ValueError(
        f"unknown trace exporter {exporter!r}; use none, console, otlp, otlp=URL or file=PATH"
    )


def _line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"
