"""A file of spans survives a full disk; a collector that is slow costs an end a second or two."""

import json
import logging
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext

from signalbox_rpc.telemetry import span_exporters
from signalbox_rpc.telemetry.span_exporters import FileSpanExporter, HastyExporter, make_exporter


def make_span(name: str) -> ReadableSpan:
    return ReadableSpan(name, context=SpanContext(1, 2, is_remote=False), start_time=1, end_time=2)


def names(path: Path) -> list[str]:
    """Of the spans of those lines that are whole."""
    found = []
    for line in path.read_text().splitlines():
        try:
            (resource_spans,) = json.loads(line)["resourceSpans"]
        except ValueError:
            continue
        found += [span["name"] for span in resource_spans["scopeSpans"][0]["spans"]]
    return found


@contextmanager
def disk_full_after(num_bytes: int) -> Iterator[None]:
    """Lets no file grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_line_that_a_full_disk_cuts_off_costs_the_next_line_nothing(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    exporter = FileSpanExporter(str(path))
    assert exporter.export([make_span("first")]) is SpanExportResult.SUCCESS
    with disk_full_after(path.stat().st_size + 10):
        assert exporter.export([make_span("torn")]) is SpanExportResult.FAILURE
        assert exporter.export([make_span("lost")]) is SpanExportResult.FAILURE
    assert exporter.export([make_span("next")]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    assert names(path) == ["first", "next"]


def test_a_full_disk_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    exporter = FileSpanExporter("/dev/full")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert exporter.export([make_span("a")]) is SpanExportResult.FAILURE
    exporter.shutdown()
    (record,) = caplog.records
    assert record.getMessage() == (
        "no spans can be written to /dev/full (No space left on device); they are dropped"
    )


def test_a_path_that_cannot_be_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for path, reason in ((tmp_path, "Is a directory"), (tmp_path / "no" / "x", "No such file")):
        with pytest.raises(ValueError, match=f"file={path} cannot be written.*{reason}.*folder"):
            make_exporter(f"file={path}")


class Slow(SpanExporter):
    """Takes spans, in 50 ms each time by a clock of its own, and counts how often."""

    num_exports = 0
    result = SpanExportResult.SUCCESS

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_exports += 1
        return self.result

    def now(self) -> float:
        return 1000 + 0.05 * self.num_exports


def test_in_a_hurry_a_slow_collector_gets_what_it_takes_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = HastyExporter(slow := Slow())
    monkeypatch.setattr(span_exporters.time, "monotonic", slow.now)
    exporter.hurry(within_s=0.12)
    results = [exporter.export([make_span("a")]) for _ in range(10)]
    begun = [SpanExportResult.SUCCESS] * 3  # at 0, 0.05 and 0.1 s
    assert results == begun + [SpanExportResult.FAILURE] * 7
    assert slow.num_exports == 3


def test_a_collector_that_was_down_is_not_asked_again_in_a_hurry_but_at_any_other_time() -> None:
    exporter = HastyExporter(slow := Slow())
    slow.result = SpanExportResult.FAILURE
    for _ in range(2):
        assert exporter.export([make_span("a")]) is SpanExportResult.FAILURE
    exporter.hurry(within_s=60)
    assert exporter.export([make_span("a")]) is SpanExportResult.FAILURE
    assert slow.num_exports == 2
