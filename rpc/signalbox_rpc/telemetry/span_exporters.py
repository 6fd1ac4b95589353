"""Exporters of spans: to a collector, to standard error, or to a file if there is no collector.

The file holds OTLP's JSON encoding, one ExportTraceServiceRequest a line (the specification's file
exporter), which the collector's `otlpjsonfile` receiver and `signalbox trace` read. An exporter is
imported when it is chosen, so that a process without tracing does not wait for the imports.
"""

import base64
import json
import logging
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from google.protobuf.json_format import MessageToDict
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SpanExporter, SpanExportResult

from signalbox_rpc.telemetry import otlp

logger = logging.getLogger(__name__)

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
            return _otlp_http("") if otlp.uses_http() else _otlp("")
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

    insecure = not url.startswith("https:") if url else None
    timeout_s = otlp.timeout_s()
    return OTLPSpanExporter(endpoint=url or None, insecure=insecure, timeout=timeout_s)


def _otlp_http(url: str) -> SpanExporter:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    endpoint = otlp.http_endpoint(url)
    return OTLPSpanExporter(endpoint=endpoint, timeout=otlp.timeout_s())


def _line(span: ReadableSpan) -> str:
    return str(span.to_json(indent=None)) + "\n"


class FileSpanExporter(SpanExporter):
    """Appends to a file that several processes may share: each batch is one line, in one write."""

    def __init__(self, path: str) -> None:
        """Raises ValueError if the file cannot be opened."""
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans

        self._encode = encode_spans
        self._path = path
        self._is_failing = False
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            remedy = "name a file in a folder that exists and is writable"
            raise ValueError(
                f"file={path} cannot be written ({error.strerror}); {remedy}"
            ) from None

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        content = _with_hex_ids(MessageToDict(self._encode(spans), use_integers_for_enums=True))
        data = json.dumps(content, separators=(",", ":")).encode() + b"\n"
        if self._is_failing:
            data = b"\n" + data  # ends a line that was cut off
        reason = self._write(data)
        if reason and not self._is_failing:
            logger.warning(
                "no spans can be written to %s (%s); they are dropped", self._path, reason
            )
        self._is_failing = bool(reason)
        return SpanExportResult.FAILURE if reason else SpanExportResult.SUCCESS

    def _write(self, data: bytes) -> str:
        """Returns why not all bytes could be written, or ""."""
        try:
            written = os.write(self._file, data)
        except OSError as error:
            return error.strerror or str(error)
        return "" if written == len(data) else f"{written} of {len(data)} bytes were taken"

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
    """Passes spans on; while hurrying it drops them if the last export failed, or after some
    time."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._until: float | None = None
        """Time on the monotonic clock when hurrying ends; None if the exporter is not hurrying."""
        self._has_failed = False

    def hurry(self, *, within_s: float) -> None:
        """Allows no export to begin later than `within_s` seconds from now; called before the
        process ends."""
        self._until = time.monotonic() + within_s

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self._until is not None and (self._has_failed or time.monotonic() > self._until):
            return SpanExportResult.FAILURE
        result = self._exporter.export(spans)
        self._has_failed = result is SpanExportResult.FAILURE
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)
