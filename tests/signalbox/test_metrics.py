"""`signalbox serve` shows the metrics of each of its processes, and logs as it is told."""

import json
import re
import urllib.request
from pathlib import Path

from signalbox.settings import ServeSettings
from signalbox.stack import LocalStack
from tests.signalbox.stacks import serve, signalbox


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def test_each_process_of_serve_shows_its_metrics_and_logs_json(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = ("--metrics-port=0", "--log-format=json", "--log-requests=ends")
    with serve(log, "--simulate", *flags) as stack:
        done = signalbox("generate", "hello", "--max-tokens=5", "--router", stack.address)
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        urls = {
            line["service"]: found[1]
            for line in lines
            if (found := re.fullmatch(r"metrics at (\S+)", line["message"]))
        }
        assert urls.keys() == {"router", "scheduler", "worker 0"}
        assert 'signalbox_requests_total{code="OK"' in read(urls["router"])
        assert "signalbox_generation_tokens_total" in read(urls["scheduler"])
        assert "signalbox_worker_sampled_tokens_total" in read(urls["worker 0"])
        (ended,) = [line for line in lines if line["message"].startswith("ended by")]
        assert ended["request_id"]
        assert stack.stop() == 0


def test_the_processes_of_serve_take_ports_one_after_the_other() -> None:
    settings = {"simulate": True, "workers": 2}
    stack = LocalStack(ServeSettings(metrics_port=9000, **settings))
    assert [stack._metrics_port(place) for place in (1, 2, 3)] == [9001, 9002, 9003]
    assert LocalStack(ServeSettings(metrics_port=0, **settings))._metrics_port(1) == 0
    assert LocalStack(ServeSettings(**settings))._metrics_port(1) is None
