"""What is killed, or told to end, while it starts leaves no process and no folder."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.placement.ranks import MODEL_FLAGS
from tests.ports import free_port
from tests.signalbox.stacks import COMMAND, environment
from tests.waiting import wait_until, wait_until_ended

pytestmark = pytest.mark.system

IN_STAGES = (*MODEL_FLAGS, "--pipeline-parallel-size=2")
OF_LLM = (
    "import sys; from signalbox import LLM;"
    "LLM(sys.argv[1], device='cpu', dtype='float32', pipeline_parallel_size=2, num_threads=1)"
)
OF_TRIAL = (
    "import torch; from signalbox_worker.device.trials.trial import Trial;"
    "from signalbox_worker.device.trials.trial_runner import run_trials;"
    "run_trials([Trial(name='one', function='time:sleep', arguments={})], torch.device('cpu'))"
)
LAST = {"serve": "router", "trial": "trial_process"}
"""Part of the command of the process that a launcher starts last, if that is not a rank."""


def command(launcher: str, model: Path) -> list[str]:
    ports = (f"--grpc-port={free_port()}", "--http-port=0")
    return {
        "serve": [*COMMAND, "serve", "--simulate", *ports],
        "ranks of serve": [*COMMAND, "serve", str(model), *ports, *IN_STAGES],
        "ranks of a worker": [
            *COMMAND,
            "worker",
            str(model),
            "--scheduler=127.0.0.1:1",
            *IN_STAGES,
        ],
        "ranks of LLM": [sys.executable, "-c", OF_LLM, str(model)],
        "trial": [sys.executable, "-c", OF_TRIAL],
    }[launcher]


def end_at_start(launcher: str, model: Path, folder: Path, number: signal.Signals) -> int:
    """Sends a signal as soon as the last process has begun, which has imported nothing yet;
    returns the status once all processes have ended."""
    below: set[psutil.Process] = set()

    def has_begun() -> bool:
        assert process.poll() is None, log.read_text()
        below.update(psutil.Process(process.pid).children(recursive=True))
        last = LAST.get(launcher, "follower_process")
        return any(last in " ".join(one.cmdline()) for one in below if one.is_running())

    log = folder / "log"
    with (
        log.open("wb") as sink,
        subprocess.Popen(
            command(launcher, model),
            env=environment() | {"TMPDIR": str(folder)},
            stdin=subprocess.DEVNULL,
            stderr=sink,
        ) as process,
    ):
        try:
            wait_until(has_begun, told=log.read_text)
        finally:
            process.send_signal(number)
    for one in below:
        wait_until_ended(one.pid)
    return process.returncode


@pytest.mark.parametrize(
    "launcher", ["serve", "ranks of serve", "ranks of a worker", "ranks of LLM", "trial"]
)
def test_nothing_outlives_a_launcher_that_is_killed(
    launcher: str, model: Path, tmp_path: Path
) -> None:
    end_at_start(launcher, model, tmp_path, signal.SIGKILL)
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


@pytest.mark.parametrize("launcher", ["serve", "ranks of serve", "ranks of a worker"])
def test_a_service_that_is_told_to_end_while_it_starts_exits_0(
    launcher: str, model: Path, tmp_path: Path
) -> None:
    assert end_at_start(launcher, model, tmp_path, signal.SIGTERM) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
