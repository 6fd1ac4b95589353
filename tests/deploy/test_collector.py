"""The shipped collector scrapes each service and gives gen_ai.server.* the conventions' names."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.router.stack import Stack, make_generate, make_stack, saying
from tests.rpc.collector import Collector, grpc_collector
from tests.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
CONFIG = DEPLOY / "otel" / "collector.yaml"
PROMETHEUS = DEPLOY / "prometheus" / "prometheus.yaml"
NAMES = {
    "gen_ai.server.request.duration",
    "gen_ai.server.time_to_first_token",
    "gen_ai.server.time_per_output_token",
}


def config() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(CONFIG.read_text())
    return content


def test_the_collector_scrapes_what_prometheus_scrapes() -> None:
    def scraped(jobs: list[dict[str, Any]]) -> dict[str, tuple[list[str], int]]:
        found = {job["job_name"]: job["dns_sd_configs"][0] for job in jobs}
        return {name: (where["names"], where["port"]) for name, where in found.items()}

    ours = config()["receivers"]["prometheus"]["config"]["scrape_configs"]
    assert scraped(ours) == scraped(yaml.safe_load(PROMETHEUS.read_text())["scrape_configs"])


async def test_each_name_and_label_of_the_router_is_turned_into_that_of_the_conventions() -> None:
    async with make_stack(saying("a", "b")) as stack:
        await ask(stack)
        families = [
            family
            for family in stack.router.registry.collect()
            if family.name.startswith("gen_ai_")
        ]
        labels = {label for one in families for sample in one.samples for label in sample.labels}
    of_points, of_metrics = (
        "\n".join(group["statements"])
        for group in config()["processors"]["transform/gen_ai"]["metric_statements"]
    )
    renamed = re.findall(r'set\(name, "(.+)"\) where name == "(.+)"', of_metrics)
    assert {theirs for theirs, _ in renamed} == NAMES
    assert {ours for _, ours in renamed} == {family.name for family in families}
    moved = re.findall(r'set\(attributes\["(.+)"\], attributes\["(.+)"\]\)', of_points)
    assert {ours for _, ours in moved} == labels - {"le"}
    for theirs, ours in (*renamed, *moved):
        assert theirs.replace(".", "_") == ours.removesuffix("_seconds")


async def test_a_collector_sends_what_it_scrapes_under_these_names(tmp_path: Path) -> None:
    program = shutil.which("otelcol-contrib")
    if program is None:
        pytest.skip("otelcol-contrib is not installed (the OpenTelemetry collector's releases)")
    with grpc_collector() as received:
        async with make_stack(saying("a", "b"), metrics_port=0) as stack:
            await ask(stack)
            server = stack.router.metrics_server
            assert server is not None
            with running(program, tmp_path, scrapes=server.address, sends_to=received):
                await eventually(lambda: received.metrics.get("router", {}).keys() >= NAMES)
    for name in NAMES:
        metric = received.metrics["router"][name]
        (point,) = metric.histogram.data_points
        attributes = {one.key: one.value.string_value for one in point.attributes}
        assert (metric.unit, point.count) == ("s", 1)
        assert attributes == {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "signalbox",
            "gen_ai.request.model": "tiny",
            "gen_ai.response.model": "tiny",
        }


async def ask(stack: Stack) -> None:
    async for _ in stack.client.Generate(make_generate()):
        pass


@contextmanager
def running(program: str, folder: Path, *, scrapes: str, sends_to: Collector) -> Iterator[None]:
    """Runs the shipped configuration with another target, and without ports of its own."""
    job = {
        "job_name": "router",
        "scrape_interval": "100ms",
        "static_configs": [{"targets": [scrapes]}],
    }
    here = {"endpoint": "127.0.0.1:0"}
    changes = folder / "changes.yaml"
    changes.write_text(
        yaml.safe_dump(
            {
                "receivers": {
                    "otlp": {"protocols": {"grpc": here, "http": here}},
                    "prometheus": {"config": {"scrape_configs": [job]}},
                },
                "exporters": {"otlp/test": {"endpoint": sends_to.url, "tls": {"insecure": True}}},
                "service": {
                    "telemetry": {"metrics": {"level": "none"}},
                    "pipelines": {"metrics": {"exporters": ["otlp/test"]}},
                },
            }
        )
    )
    process = subprocess.Popen([program, f"--config={CONFIG}", f"--config={changes}"])
    try:
        yield
    finally:
        process.terminate()
        process.wait()
