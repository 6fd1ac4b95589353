"""`signalbox serve` shows the metrics of each of its processes, and logs as it is told."""

import json
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.stack_addresses import StackAddresses
from tests.ports import free_port
from tests.signalbox.stacks import serve, signalbox
from tests.waiting import EVENT_S


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=EVENT_S) as answer:
        text: str = answer.read().decode()
        return text


def test_each_process_of_serve_shows_its_metrics_and_logs_json(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("--metrics-port=0", "--log-format=json", "--log-requests=ends")
    with serve(log, "--simulate", *flags) as stack:
        done = signalbox(
            "generate", "hello", "--max-tokens=5", "--ignore-eos", "--router", stack.address
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        urls = {
            line["service"]: found[1]
            for line in lines
            if (found := re.fullmatch(r"metrics at (\S+)", line["message"]))
        }
        assert urls.keys() == {"router", "scheduler", "worker 0"}
        shown = {service: read(url) for service, url in urls.items()}
        merged = samples_of(read(f"{stack.http_url().removesuffix('/v1')}/metrics"))
        for service, text in shown.items():
            for name, labels in samples_of(text):
                assert (name, labels | {("service", service)}) in merged
        for service in shown:
            assert ("signalbox_service_up", frozenset({("service", service)})) in merged
        assert 'signalbox_requests_total{code="OK"' in shown["router"]
        assert "signalbox_generation_tokens_total" in shown["scheduler"]
        assert "signalbox_worker_sampled_tokens_total" in shown["worker 0"]
        (ended,) = [line for line in lines if line["message"] == "request ended"]
        assert ended["request_id"]
        assert ended["output_tokens"] == 5
        assert stack.stop() == 0


def samples_of(text: str) -> set[tuple[str, frozenset[tuple[str, str]]]]:
    return {
        (sample.name, frozenset(sample.labels.items()))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_processes_of_serve_take_ports_one_after_the_other() -> None:
    settings = {"simulate": True, "workers": 2}
    addresses = StackAddresses(ServeSettings(metrics_port=9000, **settings))
    assert [addresses.metrics_port(place) for place in (1, 2, 3)] == [9001, 9002, 9003]
    assert StackAddresses(ServeSettings(metrics_port=0, **settings)).metrics_port(1) == 0
    assert StackAddresses(ServeSettings(**settings)).metrics_port(1) is None


@pytest.mark.parametrize("name", ["http_port", "metrics_port"])
def test_the_scheduler_leaves_a_port_that_was_asked_for_to_its_service(name: str) -> None:
    port = free_port()
    settings = ServeSettings(simulate=True, grpc_port=port, **{name: port + 1})
    assert StackAddresses(settings).scheduler != f"127.0.0.1:{port + 1}"
