"""Reads spans in OTLP's JSON encoding, from `--trace-exporter file=PATH` and collectors."""

import json
import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

Value = str | bool | int | float
"""An attribute's value; those of an array are joined to a text."""

KIND_CLIENT = 3
STATUS_ERROR = 2


class NotATrace(ValueError):
    """A file has no spans, or none that were asked for; the message says which in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    name: str
    at_ns: int
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanLink:
    span_id: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpanRecord:
    """One span, with the fields that are shown."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    links: tuple[SpanLink, ...] = ()
    error: str = ""


def read_spans(path: Path) -> list[SpanRecord]:
    """Reads a file with one JSON object per line, or a single one. Raises NotATrace or OSError.

    A line that was torn, by a full disk or a killed writer, is left out with a warning.
    """
    spans: list[SpanRecord] = []
    torn: list[str] = []
    for number, content in _objects(path, torn):
        try:
            spans += _spans(content)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"line {number} is no OTLP JSON ({type(error).__name__}: {error})"
            raise NotATrace(f"{path}: {reason}") from None
    if not spans and torn:
        raise NotATrace(f"{path}: {torn[0]}")
    for line in torn:
        logger.warning("%s: %s; it is left out", path, line)
    if not spans:
        raise NotATrace(f"{path} has no spans; --trace-exporter file=PATH writes such files")
    return spans


def _objects(path: Path, torn: list[str]) -> Iterator[tuple[int, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise NotATrace(f"{path} is no text") from None
    try:
        whole = json.loads(text)
    except ValueError:
        pass  # one object a line, most likely
    else:
        yield 1, whole
        return
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                if number == len(lines) > 1 and not line.endswith("\n"):
                    return  # the line is being written, or its writer was killed
                torn.append(f"line {number} is no JSON ({error})")


def _spans(content: dict[str, Any]) -> Iterator[SpanRecord]:
    for resource in content["resourceSpans"]:
        names = _attributes(resource.get("resource", {}))
        name = names.get("service.name", "unknown_service")
        service = str(names.get("signalbox.service", name))
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                yield _span(span, service)


def _span(span: dict[str, Any], service: str) -> SpanRecord:
    status = span.get("status", {})
    start_ns = int(span["startTimeUnixNano"])
    is_error = status.get("code") in (STATUS_ERROR, "STATUS_CODE_ERROR")
    return SpanRecord(
        service=service,
        name=span["name"],
        trace_id=span["traceId"],
        span_id=span["spanId"],
        parent_id=span.get("parentSpanId", ""),
        kind=KIND_CLIENT if span.get("kind") in (KIND_CLIENT, "SPAN_KIND_CLIENT") else 0,
        start_ns=start_ns,
        end_ns=max(start_ns, int(span["endTimeUnixNano"])),  # a clock may be set back
        attributes=_attributes(span),
        events=tuple(
            SpanEvent(
                name=event["name"],
                at_ns=int(event["timeUnixNano"]),
                attributes=_attributes(event),
            )
            for event in span.get("events", [])
        ),
        links=tuple(
            SpanLink(span_id=link["spanId"], attributes=_attributes(link))
            for link in span.get("links", [])
        ),
        error=(status.get("message") or "error") if is_error else "",
    )


def _attributes(holder: dict[str, Any]) -> dict[str, Value]:
    return {
        entry["key"]: value
        for entry in holder.get("attributes", [])
        if (value := _value(entry["value"])) is not None
    }


def _value(value: dict[str, Any]) -> Value | None:
    """Returns a scalar value, or those of an array as a text; None for any other."""
    if values := value.get("arrayValue", {}).get("values"):
        return ", ".join(str(_value(one)) for one in values)
    for kind, read in (("stringValue", str), ("boolValue", bool), ("doubleValue", _number)):
        if kind in value:
            found: Value = read(value[kind])
            return found
    return int(value["intValue"]) if "intValue" in value else None


def _number(value: float | str) -> float | str:
    """Returns a number, or the name of one that JSON cannot write: NaN or an infinity."""
    number = float(value)
    return number if math.isfinite(number) else str(number)
