"""`signalbox trace` draws a request from a file of spans."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from signalbox.named_files import UnusableFile
from signalbox.trace import command
from signalbox.trace.from_spans import draw_traced
from signalbox.trace.span_file import NotATrace, read_spans
from signalbox.trace.svg import to_html, to_svg
from signalbox.trace.timeline_drawing import Drawing, Row, Segment, in_words, seconds, shares

MS = 1_000_000
TRACE_ID = "ab" * 16


def make_span(
    name: str, span_id: str, start_ms: float, end_ms: float, **more: Any
) -> dict[str, Any]:
    attributes = [{"key": k, "value": v} for k, v in more.pop("attributes", {}).items()]
    return {
        "name": name,
        "traceId": TRACE_ID,
        "spanId": span_id,
        "startTimeUnixNano": str(int(start_ms * MS)),
        "endTimeUnixNano": str(int(end_ms * MS)),
        "attributes": attributes,
        **more,
    }


def make_request(request_id: str, *, ms: float, at: float = 1000) -> list[dict[str, Any]]:
    """A request that waits half of its time, prefills in two chunks, and is preempted once."""

    def span(name: str, key: str, start: float, end: float, **more: Any) -> dict[str, Any]:
        own = {f"{k}Id": request_id + v for k, v in more.pop("ids", {}).items()}
        start_ms, end_ms = at + ms * start, at + ms * end
        return make_span(name, request_id + key, start_ms, end_ms, **own, **more)

    named = {"gen_ai.response.id": {"stringValue": request_id}}
    phases = [
        ("queue", 0, 0.5, {"signalbox.reason": {"stringValue": "capacity"}}),
        ("prefill", 0.5, 0.6, {"signalbox.chunks": {"intValue": "2"}}),
        ("decode", 0.6, 0.7, {}),
        ("preempted", 0.7, 0.8, {"signalbox.mode": {"stringValue": "swap"}}),
        ("decode", 0.8, 1, {}),
    ]
    chunks = [
        {"name": "chunk", "timeUnixNano": str(int((at + ms * part) * MS))} for part in (0.5, 0.55)
    ]
    why = [{"key": "signalbox.why", "value": {"stringValue": "first"}}]
    link = {"spanId": f"{request_id}r", "traceId": TRACE_ID, "attributes": why}
    return [
        span("chat tiny", "s", 0, 1, attributes=named),
        span("scheduler.request", "r", 0, 1, attributes=named, ids={"parentSpan": "s"}),
        *(
            span(
                name,
                f"p{index}",
                start,
                end,
                attributes=attributes,
                ids={"parentSpan": "r"},
                events=chunks if name == "prefill" else [],
            )
            for index, (name, start, end, attributes) in enumerate(phases)
        ),
        span(
            "fetch",
            "n",
            0.1,
            0.3,
            attributes={"signalbox.bytes": {"intValue": "4000"}},
            ids={"parentSpan": "r"},
        ),
        span("ExecuteModel", "c", 0.5, 0.55, kind=3, links=[link], ids={"parentSpan": "other"}),
        span("ExecuteModel", "w", 0.51, 0.55, kind=2, ids={"parentSpan": "c"}),
        span("forward", "f", 0.51, 0.54, ids={"parentSpan": "w"}),
        span("sample", "d", 0.54, 0.55, ids={"parentSpan": "w"}),
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """As two processes write it, each a line."""
    path = tmp_path / "spans.jsonl"
    lines = [
        {"resourceSpans": [{"scopeSpans": [{"spans": make_request(name, ms=ms)}]}]}
        for name, ms in (("quick", 10), ("slow", 200))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def rows_of(drawing: Drawing) -> dict[str, tuple[int, int]]:
    """Each row's number of segments, and milliseconds."""
    return {row.label: (len(row.segments), round(row.total_ns / MS)) for row in drawing.rows}


def test_the_slowest_request_of_a_file_is_drawn(file: Path) -> None:
    drawing = draw_traced(read_spans(file), None)
    assert drawing.title == "slow"
    assert rows_of(drawing) == {
        "chat tiny": (1, 200),
        "scheduler": (1, 200),
        "queue": (1, 100),
        "prefill": (2, 20),
        "preempted": (1, 20),
        "decode": (2, 60),
        "fetch": (1, 40),
        "its steps": (1, 10),
        "on the worker": (2, 8),
    }
    assert drawing.lines[0].startswith("200.0 ms in all: queue 100.0 ms (50 %), decode")
    notes = [(note.what, round(note.at_ns / MS)) for note in drawing.notes]
    assert ("step", 100) in notes
    assert notes == sorted(notes, key=lambda note: note[1])


def test_what_a_request_spends_outside_the_scheduler_is_part_of_its_time() -> None:
    phases = [
        Row("queue", (Segment(10, 20, "queue"),)),
        Row("decode", (Segment(20, 70, "decode"),)),
    ]
    assert shares(phases, duration_ns=100) == (
        "0 µs in all: decode 0 µs (50 %), queue 0 µs (10 %), outside the scheduler 0 µs (40 %)"
    )
    assert "outside" not in shares(phases, duration_ns=60)


def test_another_request_is_drawn_by_its_id(file: Path) -> None:
    assert draw_traced(read_spans(file), "quick").duration_ns == 10 * MS
    with pytest.raises(NotATrace, match="no span of request 'gone'; there are quick, slow"):
        draw_traced(read_spans(file), "gone")


def test_a_request_is_found_by_part_of_its_id_and_by_its_trace(file: Path) -> None:
    spans = read_spans(file)
    assert draw_traced(spans, "ick").title == "quick"  # such as a gateway's x-request-id
    drawing = draw_traced(spans, TRACE_ID)
    assert drawing.title == "slow"
    assert "the slowest of 2" in drawing.lines[-1]


def test_a_file_that_is_being_written_is_read_but_for_its_last_line(file: Path) -> None:
    whole = file.read_text()
    file.write_text(whole + whole[:50])
    assert len(read_spans(file)) > 0


def test_a_torn_line_costs_its_own_spans_and_a_warning(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = file.read_text()
    expected = read_spans(file)
    assert not caplog.messages
    file.write_text(whole[:50] + "\n" + whole)
    assert [span.span_id for span in read_spans(file)] == [span.span_id for span in expected]
    (warning,) = caplog.messages
    assert "line 1 is no JSON" in warning


def test_a_request_that_never_reached_a_scheduler_is_drawn_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    (refused,) = make_request("refused", ms=2)[:1]
    refused["status"] = {"code": 2, "message": "RESOURCE_EXHAUSTED"}
    path.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [refused]}]}]}))
    drawing = draw_traced(read_spans(path), None)
    assert drawing.lines == ("ended with RESOURCE_EXHAUSTED", "2.0 ms in all")
    assert drawing.is_error
    assert "RESOURCE_EXHAUSTED" in to_svg(drawing)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no spans"),
        ("{}", "is no OTLP JSON"),
        ('{"resourceSpans": []}', "has no spans"),
        ('{"resourceSpans": []}\n{\n', "line 2 is no JSON"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}]}]}]}', "traceId"),
        ("[1]", "is no OTLP JSON"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(
    content: str, complaint: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(NotATrace, match=complaint) as refused:
        read_spans(path)
    assert "\n" not in str(refused.value)


def test_pictures_stand_alone_and_escape_what_clients_chose(file: Path) -> None:
    file.write_text(file.read_text().replace("slow", "<b>&slow"))
    drawing = draw_traced(read_spans(file), None)
    svg, html = to_svg(drawing), to_html(drawing)
    root = ET.fromstring(svg)
    bars = [rect for rect in root.iter() if rect.find("{*}title") is not None]
    assert len(bars) == sum(len(row.segments) for row in drawing.rows)
    width = float(root.attrib["width"])
    assert all(float(b.attrib["x"]) + float(b.attrib["width"]) <= width for b in bars)
    for text in (svg, html):
        assert "<b>" not in text
        assert "&lt;b&gt;&amp;slow" in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_stages_of_a_worker_have_a_row_each(file: Path) -> None:
    spans = [
        make_span(
            "stage",
            f"slow{number}",
            1000 + start,
            1000 + end,
            parentSpanId="slowf",
            attributes={
                "signalbox.stage": {"intValue": str(number)},
                "signalbox.wait_ns": {"intValue": str(number * MS)},
                "host.name": {"stringValue": host},
            },
        )
        for number, start, end, host in ((1, 105, 108, "b"), (0, 102, 104, "a"))
    ]
    line = {"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}
    with file.open("a") as output:
        output.write(json.dumps(line) + "\n")
    drawing = draw_traced(read_spans(file), "slow")
    rows = rows_of(drawing)
    assert (rows["stage 0"], rows["stage 1"]) == ((1, 2), (1, 3))
    assert list(rows)[-2:] == ["stage 0", "stage 1"]
    line_of_stages = drawing.lines[2]
    assert line_of_stages == (
        "stage 0 on a: 2.0 ms computed, 0 µs waited, stage 1 on b: 3.0 ms computed, 1.0 ms waited"
    )
    assert "stage" in to_svg(drawing)


def test_numbers_are_written_for_people() -> None:
    assert [seconds(n) for n in (1500, 2.5e6, 3.21e9)] == ["2 µs", "2.5 ms", "3.210 s"]
    attributes = {
        "gen_ai.x": 1,
        "signalbox.blocks": 3,
        "signalbox.chunks": 0,
        "signalbox.bytes": 3 << 19,
        "signalbox.is_recompute": True,
        "signalbox.time_per_token.p99_s": 0.02,
        "signalbox.forward_ns": 4_000_000,
        "signalbox.boundary_bytes": 1536,
    }
    assert in_words(attributes) == (
        "blocks 3, 1.5 MiB, recompute, p99 20.0 ms, forward 4.0 ms, passed on 1.5 KiB"
    )


def test_the_command_writes_pictures(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"file": file, "request": None, "html": None, "svg": None}
    command.run(options)
    shown = capsys.readouterr().out
    assert "slow" in shown
    assert "preempted" in shown
    html, svg = tmp_path / "a.html", tmp_path / "a.svg"
    command.run(options | {"html": html, "svg": svg})
    assert html.read_text().startswith("<!doctype html>")
    assert svg.read_text().startswith("<svg")
    with pytest.raises(UnusableFile, match=r"cannot read .*gone.jsonl: No such file"):
        command.run(options | {"file": tmp_path / "gone.jsonl"})
