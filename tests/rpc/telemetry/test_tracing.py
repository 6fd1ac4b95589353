"""Trace context crosses processes; exporters write; off means off."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from signalbox_rpc.telemetry import tracing
from tests.rpc.collector import Collector, grpc_collector, http_collector

pytestmark = pytest.mark.slow

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


def test_a_context_survives_the_wire() -> None:
    context = tracing.extract(TRACEPARENT, "vendor=1")
    assert tracing.inject(context) == (TRACEPARENT, "vendor=1")


@pytest.mark.parametrize("traceparent", ["", "garbage", TRACEPARENT[:-3], "00-" + "0" * 52])
def test_an_invalid_context_starts_a_new_trace(traceparent: str) -> None:
    assert tracing.inject(tracing.extract(traceparent)) == ("", "")


def test_metadata_is_searched_for_the_context() -> None:
    metadata = [("user-agent", "x"), ("some-bin", b"\0"), ("traceparent", TRACEPARENT)]
    assert tracing.inject(tracing.extract_metadata(metadata))[0] == TRACEPARENT
    assert tracing.inject(tracing.extract_metadata(None)) == ("", "")


def test_spans_are_not_recorded_until_configured() -> None:
    tracing.configure(service_name="test", exporter="none")
    with tracing.get_tracer().start_as_current_span("step") as span:
        assert not span.is_recording()


@pytest.mark.parametrize("exporter", ["jaeger", "file", "file=", "none=1", ""])
def test_an_unknown_exporter_is_refused(exporter: str) -> None:
    with pytest.raises(ValueError, match="use none, auto, console, otlp"):
        tracing.configure(service_name="test", exporter=exporter)


def run_with(
    exporter: str, *, num_spans: int = 1, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a process that makes spans below TRACEPARENT; it prints when they began and ended."""
    script = (
        "import sys, time\n"
        "from signalbox_rpc.telemetry.tracing import configure, extract, get_tracer\n"
        "configure(service_name='test', exporter=sys.argv[1])\n"
        f"parent = extract({TRACEPARENT!r})\n"
        "started = time.monotonic()\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    with get_tracer().start_as_current_span('step', context=parent): pass\n"
        "print(started, time.monotonic())\n"
    )
    inherited = {key: v for key, v in os.environ.items() if not key.startswith("OTEL_")}
    return subprocess.run(
        [sys.executable, "-c", script, exporter, str(num_spans)],
        capture_output=True,
        text=True,
        check=True,
        env=inherited | environment,
    )


def test_the_file_exporter_appends_otlps_json(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    for _ in range(2):
        run_with(f"file={path}")
    for line in path.read_text().splitlines():
        (resource,) = json.loads(line)["resourceSpans"]
        names = {a["key"]: a["value"] for a in resource["resource"]["attributes"]}
        assert names["service.name"] == {"stringValue": "test"}
        (span,) = resource["scopeSpans"][0]["spans"]
        assert (span["traceId"], span["parentSpanId"]) == (TRACE_ID, PARENT_ID)
        assert (span["name"], span["kind"]) == ("step", 1)


def test_the_console_exporter_leaves_standard_output_alone() -> None:
    done = run_with("console")
    assert len(done.stdout.splitlines()) == 1
    span = json.loads(done.stderr)
    assert span["name"] == "step"
    assert span["parent_id"] == f"0x{PARENT_ID}"


def check_arrived(collector: Collector, service: str = "test") -> None:
    (received,) = collector.received
    assert received.service == service
    assert received.span.trace_id.hex() == TRACE_ID
    assert received.span.parent_span_id.hex() == PARENT_ID


def test_otlp_goes_over_grpc_and_over_http() -> None:
    with grpc_collector() as collector:
        run_with(f"otlp={collector.url}")
    check_arrived(collector)
    with http_collector() as collector:
        run_with(f"otlp-http={collector.url}")
    check_arrived(collector)


def test_the_environment_of_opentelemetry_is_heard() -> None:
    with http_collector() as collector:
        run_with(
            "auto",
            OTEL_TRACES_EXPORTER="otlp",
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_SERVICE_NAME="mine",
        )
    check_arrived(collector, service="mine")
    with http_collector() as collector:
        run_with(f"otlp-http={collector.url}", OTEL_TRACES_SAMPLER="always_off")
        run_with("auto", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    assert not collector.received


@pytest.fixture(params=["nobody listens", "nobody answers"])
def silent_url(request: pytest.FixtureRequest) -> Iterator[str]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "nobody answers":
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("exporter", ["otlp", "otlp-http"])
def test_a_collector_that_is_down_delays_neither_spans_nor_the_shutdown(
    exporter: str, silent_url: str
) -> None:
    started = time.monotonic()
    run_with("none")
    export_s = max(2.0, 3 * (time.monotonic() - started))  # until an export fails
    done = run_with(
        f"{exporter}={silent_url}",
        num_spans=5000,  # more than the queue holds
        OTEL_EXPORTER_OTLP_TIMEOUT=str(export_s),
    )
    began, ended = map(float, done.stdout.split())
    # The export in flight and at most one that begins meanwhile, of five that there is work for.
    assert time.monotonic() - ended < 3 * export_s
    assert ended - began < export_s  # no span waits for an export
