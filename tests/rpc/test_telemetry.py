"""Trace context crosses processes; exporters write; off means off."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rpc import telemetry

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_context_survives_the_wire() -> None:
    context = telemetry.extract(TRACEPARENT, "vendor=1")
    assert telemetry.inject(context) == (TRACEPARENT, "vendor=1")


@pytest.mark.parametrize("traceparent", ["", "garbage", TRACEPARENT[:-3], "00-" + "0" * 52])
def test_an_invalid_context_starts_a_new_trace(traceparent: str) -> None:
    assert telemetry.inject(telemetry.extract(traceparent)) == ("", "")


def test_metadata_is_searched_for_the_context() -> None:
    metadata = [("user-agent", "x"), ("some-bin", b"\0"), ("traceparent", TRACEPARENT)]
    assert telemetry.inject(telemetry.extract_metadata(metadata))[0] == TRACEPARENT
    assert telemetry.inject(telemetry.extract_metadata(None)) == ("", "")


def test_spans_are_not_recorded_until_configured() -> None:
    telemetry.configure(service_name="test", exporter="none")
    with telemetry.get_tracer().start_as_current_span("step") as span:
        assert not span.is_recording()


@pytest.mark.parametrize("exporter", ["jaeger", "file", "file=", "none=1", ""])
def test_an_unknown_exporter_is_refused(exporter: str) -> None:
    with pytest.raises(ValueError, match="use none, console, otlp"):
        telemetry.configure(service_name="test", exporter=exporter)


def run_with(exporter: str) -> subprocess.CompletedProcess[str]:
    script = (
        "import sys; from rpc import telemetry\n"
        "telemetry.configure(service_name='test', exporter=sys.argv[1])\n"
        f"parent = telemetry.extract({TRACEPARENT!r})\n"
        "with telemetry.get_tracer().start_as_current_span('step', context=parent): pass\n"
        "telemetry.shutdown()\n"
    )
    return subprocess.run(
        [sys.executable, "-c", script, exporter], capture_output=True, text=True, check=True
    )


def check_span(line: str) -> None:
    span = json.loads(line)
    assert span["name"] == "step"
    assert span["parent_id"] == "0xb7ad6b7169203331"
    assert span["resource"]["attributes"]["service.name"] == "test"


def test_the_file_exporter_writes_a_line_for_each_span(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    run_with(f"file={path}")
    (line,) = path.read_text().splitlines()
    check_span(line)


def test_the_console_exporter_leaves_standard_output_alone() -> None:
    done = run_with("console")
    assert done.stdout == ""
    check_span(done.stderr)


def test_a_collector_that_is_down_does_not_hold_the_shutdown() -> None:
    started = time.monotonic()
    run_with("otlp=http://127.0.0.1:9")
    assert time.monotonic() - started < 5
