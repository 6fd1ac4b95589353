"""A recording is played to the console, from a port of its own."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from signalbox.cli import main
from tests.router.apis.connect.clients import enclosed, parts_of
from tests.scheduler_svc.service.replay.record import unpack

PATH = "/signalbox.operations.v1.OperationsService"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    command = ["replay", str(unpack("swap", tmp_path)), "--console", "--speed", "1e9"]
    with subprocess.Popen(
        [sys.executable, "-m", "signalbox", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://(127\.0\.0\.1:\d+)/#/live", process.stdout.readline().decode())
        assert found is not None
        try:
            yield found[1]
            process.send_signal(signal.SIGINT)
            assert process.wait() == 0
        finally:
            process.kill()


def test_a_recording_is_played_and_explained_to_its_end(address: str) -> None:
    with httpx2.Client(base_url=f"http://{address}", timeout=None) as client:
        page = client.get("/", headers={"accept": "text/html"})
        assert '<div id="app">' in page.text
        link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        document = {"accept": "text/html", "sec-fetch-dest": "document"}
        assert client.get("/", headers=link | document).is_success  # such as a web terminal's
        headers = {"content-type": "application/connect+json"}
        for _ in range(2):  # each watcher has it from the beginning
            answer = client.post(f"{PATH}/Watch", content=enclosed(b"{}"), headers=headers)
            *messages, (flags, end) = parts_of(answer.content)
            told = [json.loads(message) for _, message in messages]
            assert (flags, json.loads(end)) == (2, {})
            assert told[0]["frame"]["isFull"]
            assert sum("steps" in json.dumps(message) for message in told) > 10
            (recording,) = {tuple(one["recording"].items()) for one in told}
            assert dict(recording)["endsAtNs"] == told[-1]["frame"]["atNs"]
            assert {one["scheduler"] for one in told} == {"swap"}
        workers = [one for message in told for one in message["frame"].get("workers", [])]
        *_, last = [one for worker in workers for one in worker.get("newSequences", [])]
        asked = {"requestNumber": last["requestNumber"], "scheduler": "swap"}
        explained = client.post(f"{PATH}/Explain", json=asked).json()
        assert explained["explanation"]["requestNumber"] == last["requestNumber"]
        assert explained["explanation"]["events"]
        elsewhere = {"origin": "https://elsewhere.example"}
        refused = client.post(f"{PATH}/Explain", json=asked, headers=elsewhere)
        assert refused.status_code == 403


@pytest.mark.parametrize(
    ("flags", "fault"),
    [
        (["--speed", "2"], "--speed needs --console"),
        (["--port", "0"], "--port needs --console"),
        (["--console", "--dump", "x"], "--dump has no effect with --console"),
        (["--console", "--token-ids"], "--token-ids has no effect with --console"),
        (["--console", "--speed", "0"], "it must be above 0"),
    ],
)
def test_flags_without_effect_are_refused(
    flags: list[str], fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "none", *flags]) == 1
    assert fault in capsys.readouterr().err
