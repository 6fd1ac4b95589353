"""The benchmark of a feature: its collector takes what is exported, its ratios are of pairs."""

import subprocess
import sys

from benchmarks.on_off import Series, collector, table

EXPORT = """
import sys
from signalbox_rpc.telemetry.tracing import configure, get_tracer
configure(service_name="test", exporter=sys.argv[1])
get_tracer().start_span("a").end()
"""


def test_the_collector_takes_what_is_exported() -> None:
    with collector() as url:
        command = [sys.executable, "-c", EXPORT, f"otlp={url}"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "export" not in done.stderr  # where one that fails would be


def test_ratios_are_the_medians_of_pairs() -> None:
    off = Series([100.0, 200.0, 100.0], [1000.0, 500.0, 1000.0])
    on = Series([110.0, 220.0, 90.0], [990.0, 490.0, 1000.0])
    *_, first, second = table("tracing", {"off": off, "on": on}).splitlines()
    assert first == "| off | 100 | 1.000 | 1000 | 1.000 |"
    assert second == "| on | 110 | 1.100 | 990 | 0.990 |"
