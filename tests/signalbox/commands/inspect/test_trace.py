"""`signalbox trace` turns a file of spans into one for Perfetto."""

import json
from pathlib import Path
from typing import Any

import pytest

from signalbox.client.named_files import UnusableFile
from signalbox.commands.inspect import trace
from signalbox.commands.inspect.chrome_trace import chrome_trace, spans_of_request
from signalbox.commands.inspect.span_file import NotATrace, SpanRecord, read_spans
from tests.signalbox.commands.inspect.chrome_format import check_format, names_of, of_phase
from tests.signalbox.stacks import run_here

MS = 1_000_000
TRACE_ID = "ab" * 16
ROUTER, SCHEDULER, WORKER = "signalbox-router", "signalbox-scheduler", "signalbox-worker"
HOST = "10.0.0.1:50053"


def attributes_of(values: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {str: "stringValue", int: "intValue"}
    return [{"key": key, "value": {kinds[type(value)]: value}} for key, value in values.items()]


def make_span(
    name: str, span_id: str, start_ms: float, end_ms: float, **more: Any
) -> dict[str, Any]:
    return {
        "name": name,
        "traceId": TRACE_ID,
        "spanId": span_id,
        "startTimeUnixNano": str(int(start_ms * MS)),
        "endTimeUnixNano": str(int(end_ms * MS)),
        **more,
        "attributes": attributes_of(more.get("attributes", {})),
    }


def make_request(request_id: str, *, ms: float, at: float = 1000) -> dict[str, list[Any]]:
    """The spans of a request, by service: half of its time it waits, its prefill has two chunks,
    and it is preempted once."""

    def span(name: str, key: str, start: float, end: float, **more: Any) -> dict[str, Any]:
        if "parent" in more:
            more["parentSpanId"] = request_id + more.pop("parent")
        return make_span(name, request_id + key, at + ms * start, at + ms * end, **more)

    named = {"gen_ai.response.id": request_id}
    phases = [
        ("queue", 0, 0.5, {"signalbox.reason": "capacity"}),
        ("prefill", 0.5, 0.6, {"signalbox.chunks": 2}),
        ("decode", 0.6, 0.7, {}),
        ("preempted", 0.7, 0.8, {"signalbox.mode": "swap"}),
        ("decode", 0.8, 1, {}),
    ]
    chunks = [
        {"name": "chunk", "timeUnixNano": str(int((at + ms * part) * MS))} for part in (0.5, 0.55)
    ]
    why = attributes_of({"signalbox.why": "first"})
    link = {"spanId": f"{request_id}r", "traceId": TRACE_ID, "attributes": why}
    return {
        ROUTER: [span("chat tiny", "s", 0, 1, attributes=named)],
        SCHEDULER: [
            *(
                span(name, f"p{index}", start, end, attributes=attributes, parent="r",
                     events=chunks if name == "prefill" else [])
                for index, (name, start, end, attributes) in enumerate(phases)
            ),
            span("fetch", "n", 0.1, 0.3, attributes={"signalbox.bytes": 4000}, parent="r"),
            span("scheduler.request", "r", 0, 1, attributes=named, parent="s"),
            span("ExecuteModel", "c", 0.5, 0.55, kind=3, links=[link], parent="r",
                 attributes={"server.address": HOST}),
        ],
        WORKER: [
            span("forward", "f", 0.51, 0.54, parent="w"),
            span("sample", "d", 0.54, 0.55, parent="w"),
            span("ExecuteModel", "w", 0.51, 0.55, kind=2, parent="c"),
        ],
    }  # fmt: skip


def write(path: Path, *requests: dict[str, list[Any]]) -> Path:
    """Writes spans as processes do, each a line."""
    lines = [
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": attributes_of({"service.name": service})},
                    "scopeSpans": [{"spans": spans}],
                }
            ]
        }
        for request in requests
        for service, spans in request.items()
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    quick, slow = make_request("quick", ms=10), make_request("slow", ms=200)
    return write(tmp_path / "spans.jsonl", quick, slow)


def events_of(spans: list[SpanRecord]) -> list[dict[str, Any]]:
    content = json.loads(json.dumps(chrome_trace(spans)))
    check_format(content)
    found: list[dict[str, Any]] = content["traceEvents"]
    return found


def places_of(events: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Returns the spans of each thread, by the names of its process and its own."""
    processes, threads = names_of(events, "process"), names_of(events, "thread")
    places: dict[tuple[str, str], list[str]] = {}
    for one in of_phase(events, "X"):
        key = processes[one["pid"]], threads[one["tid"]]
        places.setdefault(key, []).append(one["name"])
    return places


def test_a_request_is_a_thread_of_each_service_and_steps_are_those_of_the_worker(
    file: Path,
) -> None:
    events = events_of(spans_of_request(read_spans(file), "slow"))
    of_scheduler = ["scheduler.request", "queue", "fetch", "prefill", "decode", "preempted"]
    assert places_of(events) == {
        (ROUTER, "request slow"): ["chat tiny"],
        (SCHEDULER, "request slow"): [*of_scheduler, "decode"],
        (SCHEDULER, f"steps of {HOST}"): ["ExecuteModel"],
        (f"{WORKER} {HOST}", "steps"): ["ExecuteModel", "forward", "sample"],
    }
    (queue,) = [one for one in events if one["name"] == "queue"]
    assert (queue["ts"], queue["dur"]) == (0, 100_000)
    assert queue["args"]["signalbox.reason"] == "capacity"
    chunks = [one["ts"] for one in of_phase(events, "i")]
    assert chunks == [100_000, 110_000]
    arrows = [(one["name"], one["ts"]) for one in of_phase(events, "s")]
    assert arrows == [("scheduler.request", 0), ("first", 100_000), ("ExecuteModel", 102_000)]
    for end in of_phase(events, "f"):  # right behind the span in which it ends, before its parts
        before = [one for one in events[: events.index(end)] if one["tid"] == end["tid"]]
        assert (before[-1]["ts"], before[-1]["name"]) in {
            (end["ts"], "scheduler.request"), (end["ts"], "ExecuteModel"),
        }  # fmt: skip


def test_steps_that_overlap_are_on_two_threads_with_what_is_below_them(tmp_path: Path) -> None:
    first, second = make_request("a", ms=100), make_request("b", ms=100, at=1003)
    places = places_of(events_of(read_spans(write(tmp_path / "spans", first, second))))
    steps = ["ExecuteModel", "forward", "sample"]
    assert places[f"{WORKER} {HOST}", "steps"] == steps
    assert places[f"{WORKER} {HOST}", "steps (2)"] == steps
    assert places[SCHEDULER, "request a"] == places[SCHEDULER, "request b"]


def test_a_span_that_straddles_others_of_its_request_is_on_a_thread_of_its_own(
    tmp_path: Path,
) -> None:
    request = make_request("a", ms=100)
    fetch = next(span for span in request[SCHEDULER] if span["name"] == "fetch")
    fetch["endTimeUnixNano"] = str(1055 * MS)  # in the prefill
    places = places_of(events_of(read_spans(write(tmp_path / "spans", request))))
    assert places[SCHEDULER, "request a (2)"] == ["fetch"]


@pytest.mark.parametrize(("behind_ms", "num_arrows"), [(3, 3), (200, 2)])
def test_clocks_that_differ_leave_a_valid_trace(
    behind_ms: int, num_arrows: int, tmp_path: Path
) -> None:
    request = make_request("a", ms=100)
    for span in request[WORKER]:
        for edge in ("startTimeUnixNano", "endTimeUnixNano"):
            span[edge] = str(int(span[edge]) - behind_ms * MS)
    (root,) = request[ROUTER]
    root |= {"endTimeUnixNano": str(999 * MS), "parentSpanId": root["spanId"]}
    events = events_of(read_spans(write(tmp_path / "spans", request)))
    assert {one["dur"] for one in events if one["name"] == "chat tiny"} == {0}
    assert len(of_phase(events, "s")) == num_arrows


def test_a_span_that_failed_is_seen_by_its_name_category_and_reason(tmp_path: Path) -> None:
    (refused,) = make_request("refused", ms=2)[ROUTER]
    refused |= {"status": {"code": 2, "message": "RESOURCE_EXHAUSTED"}, "attributes": []}
    events = events_of(read_spans(write(tmp_path / "spans", {ROUTER: [refused]})))
    (span,) = of_phase(events, "X")
    assert (span["name"], span["cat"]) == ("ERROR chat tiny", "error")
    assert span["args"] == {"error": "RESOURCE_EXHAUSTED", "trace_id": TRACE_ID}
    assert list(places_of(events)) == [(ROUTER, f"trace {TRACE_ID}")]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_cannot_write_is_a_text(number: str, tmp_path: Path) -> None:
    span = make_span("forward", "f", 0, 1)
    span["attributes"] = [{"key": "loss", "value": {"doubleValue": number}}]
    (event,) = of_phase(events_of(read_spans(write(tmp_path / "a", {WORKER: [span]}))), "X")
    assert float(event["args"]["loss"]) == pytest.approx(float(number), nan_ok=True)
    assert json.dumps(event, allow_nan=False)


def test_each_stage_of_a_worker_has_a_thread(tmp_path: Path) -> None:
    request = make_request("a", ms=200)
    request[WORKER] += [
        make_span(
            "stage",
            f"a{number}",
            1000 + start,
            1000 + end,
            parentSpanId="af",
            attributes={"signalbox.stage": number, "host.name": host},
        )
        for number, start, end, host in ((1, 105, 108, "b"), (0, 102, 104, "a"))
    ]
    places = places_of(events_of(read_spans(write(tmp_path / "spans", request))))
    worker = f"{WORKER} {HOST}"
    assert places[worker, "stage 0 on a"] == places[worker, "stage 1 on b"] == ["stage"]


def test_a_request_is_found_by_its_id_part_of_it_and_its_trace(file: Path) -> None:
    spans = read_spans(file)
    quick = spans_of_request(spans, "quick")
    assert [one.span_id for one in quick] == [one.span_id for one in spans[: len(quick)]]
    assert spans_of_request(spans, "ick") == quick  # such as a gateway's x-request-id
    assert spans_of_request(spans, TRACE_ID) == spans
    with pytest.raises(NotATrace, match="no span of request 'gone'; there are quick, slow"):
        spans_of_request(spans, "gone")


def test_a_step_belongs_to_each_request_that_asked_for_it(tmp_path: Path) -> None:
    first, second = make_request("a", ms=100), make_request("b", ms=100)
    del second[WORKER], second[SCHEDULER][-1]
    step = first[SCHEDULER][-1]
    step["links"].append({**step["links"][0], "spanId": "br"})
    spans = read_spans(write(tmp_path / "spans", first, second))
    names = [one.name for one in spans_of_request(spans, "b")]
    assert names.count("ExecuteModel") == 2 and names.count("scheduler.request") == 1


def test_a_file_that_is_being_written_is_read_but_for_its_last_line(file: Path) -> None:
    whole = file.read_text()
    expected = len(read_spans(file))
    file.write_text(whole + whole[:50])
    assert len(read_spans(file)) == expected


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


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "has no spans"),
        ("{}", "is no OTLP JSON"),
        ('{"resourceSpans": []}', "has no spans"),
        ('{"resourceSpans": []}\n{\n', "line 2 is no JSON"),
        ('{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "a"}]}]}]}', "startTimeUnixNano"),
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


def test_the_command_writes_all_requests_or_one(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.json"
    counts = {}
    for name in (None, "slow"):
        trace.run({"file": file, "request": name, "chrome_trace": out})
        content = json.loads(out.read_text())
        check_format(content)
        counts[name] = len(of_phase(content["traceEvents"], "X"))
        assert f"{counts[name]} spans written to {out}" in capsys.readouterr().out
    assert counts == {None: 24, "slow": 12}
    with pytest.raises(UnusableFile, match=r"cannot read .*gone.jsonl: No such file"):
        trace.run({"file": tmp_path / "gone.jsonl", "request": None, "chrome_trace": out})
    with pytest.raises(UnusableFile, match="cannot write --chrome-trace"):
        trace.run({"file": file, "request": None, "chrome_trace": tmp_path})


@pytest.mark.parametrize(
    ("flags", "status", "complaint"),
    [
        ([], 1, "nothing is drawn in the terminal; --chrome-trace OUT writes what"),
        (["--html", "a.html"], 2, "there is no flag --html; --chrome-trace OUT writes what"),
        (["--svg=a.svg"], 2, "there is no flag --svg; --chrome-trace OUT writes what"),
    ],
)
def test_drawings_are_refused_with_what_replaces_them(
    flags: list[str], status: int, complaint: str, file: Path
) -> None:
    done = run_here("trace", str(file), *flags)
    assert (done.returncode, done.stdout) == (status, "")
    assert complaint in done.stderr and done.stderr.count("\n") == 1


def test_spans_are_not_written_over(file: Path) -> None:
    before = file.read_text()
    done = run_here("trace", str(file), f"--chrome-trace={file.parent / '.' / file.name}")
    assert (done.returncode, done.stdout, file.read_text()) == (1, "", before)
    assert "name another file" in done.stderr and done.stderr.count("\n") == 1
