"""Where spans go: a collector, standard error, or a file for those who have no collector.

The file holds OTLP's JSON encoding, one ExportTraceServiceRequest a line (the specification's file
exporter), which the collector's `otlpjsonfile` receiver and `signalbox trace` read. Exporters
are imported when they are chosen: those who trace nothing wait for none of them.
"""

import base64
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from rpc import otlp

CHOICES = "none, auto, console, otlp, otlp=URL, otlp-http, otlp-http=URL or file=PATH"
_IDS = ("traceId", "spanId", "parentSpanId")


def make_exporter(choice: str) -> SpanExporter | None:
    """Returns the exporter of a name; None exports nothing.

    Args:
        choice: "none"; "auto" (what OTEL_TRACES_EXPORTER says, else none); "console" (standard
            error); "otlp" (gRPC, or what OTEL_EXPORTER_OTLP_PROTOCOL says, to where
            OTEL_EXPORTER_OTLP_ENDPOINT says); "otlp=http://HOST:PORT" (gRPC); "otlp-http" and
            "otlp-http=http://HOST:PORT"; "file=PATH", to which lines are appended.

    Raises ValueError for any other.
    """
    if choice == "auto":
        return _from_environment()
    kind, _, target = choice.partition("=")
    match kind, target:
        case "none", "":
            return None
        case "console", "":
            return ConsoleSpanExporter(out=sys.stderr, formatter=_line)
        case "otlp", "":
            return _otlp_http("") if otlp.uses_http("traces") else _otlp("")
        case "otlp", _:
            return _otlp(target)
        case "otlp-http", _:
            return _otlp_http(target)
        case "file", path if path:
            return FileSpanExporter(path)
    raise ValueError(f"unknown trace exporter {choice!r}; use {CHOICES}")


def _from_environment() -> SpanExporter | None:
    name = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "none"
    if name not in ("none", "otlp", "console"):
        raise ValueError(f"OTEL_TRACES_EXPORTER is {name!r}; use none, otlp or console")
    return make_exporter(name)


def _otlp(url: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    from rpc.span_encoding import encode_spans

    class Exporter(OTLPSpanExporter):
        def _translate_data(self, data: Sequence[ReadableSpan]) -> Any:
            return encode_spans(data)

    insecure = not url.startswith("https:") if url else None
    timeout_s = otlp.timeout_s("traces")
    return Exporter(endpoint=url or None, insecure=insecure, timeout=timeout_s)


def _otlp_http(url: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    endpoint = otlp.http_endpoint(url, "traces")
    return OTLPSpanExporter(endpoint=endpoint, timeout=otlp.timeout_s("traces"))


def _line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"


class FileSpanExporter(SpanExporter):
    """Appends to a file that several processes may share: each batch is one line, in one write."""

    def __init__(self, path: str) -> None:
        from rpc.span_encoding import encode_spans

        self._encode = encode_spans
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        content = _with_hex_ids(MessageToDict(self._encode(spans), use_integers_for_enums=True))
        data = json.dumps(content, separators=(",", ":")).encode() + b"\n"
        is_whole = os.write(self._file, data) == len(data)
        return SpanExportResult.SUCCESS if is_whole else SpanExportResult.FAILURE

    def shutdown(self) -> None:
        os.close(self._file)


def _with_hex_ids(value: Any) -> Any:
    """Writes ids as OTLP's JSON has them, in hexadecimal instead of protobuf's base64."""
    if isinstance(value, list):
        return [_with_hex_ids(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64decode(item).hex() if key in _IDS else _with_hex_ids(item)
        for key, item in value.items()
    }


class HastyExporter(SpanExporter):
    """Passes spans on, and in a hurry drops what is left as soon as one export has failed."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._in_a_hurry = False
        self._has_given_up = False

    def hurry(self) -> None:
        """Says that the process is about to end."""
        self._in_a_hurry = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._has_given_up:
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._has_given_up = self._in_a_hurry and result is SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
