"""Ranks as processes end together, with the right status, and leave nothing."""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from gpu_worker.config import ModelError, ParallelConfig
from gpu_worker.ranks.launchers import LocalRank
from gpu_worker.ranks.ranked_runner import RankedRunner
from tests.gpu_worker.ranks.thread_ranks import make_start, with_sizes
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.system


class Launched:
    """A launcher that keeps what it has started."""

    def __init__(self, *, most: int = 99) -> None:
        self.ranks: list[LocalRank] = []
        self._most = most

    def __call__(self, rank: int, address: str) -> LocalRank:
        if len(self.ranks) == self._most:
            raise OSError("no process can be made")
        self.ranks.append(LocalRank(rank, address))
        return self.ranks[-1]

    @property
    def statuses(self) -> list[int | None]:
        return [one._process.poll() for one in self.ranks]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where sockets of the ranks are made."""
    made = tmp_path / "sockets"
    made.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    return made


def test_ranks_end_in_order_with_status_0(native_tiny: Path, folder: Path) -> None:
    launch = Launched()
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    runner = RankedRunner(start, on_lost=pytest.fail, launch=launch)
    assert list(folder.iterdir())
    runner.close()
    assert launch.statuses == [0, 0]
    assert not list(folder.iterdir())


def test_ranks_of_a_worker_that_cannot_start_end_with_status_1(
    native_tiny: Path, folder: Path
) -> None:
    launch = Launched()
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    start = replace(start, parallel=replace(start.parallel, layer_partition=(1, 2, 2)))
    with pytest.raises(ModelError, match=r"pipeline_layer_partition is 1,2,2; .* the sum 3"):
        RankedRunner(start, on_lost=pytest.fail, launch=launch)
    assert launch.statuses == [1, 1]
    assert not list(folder.iterdir())


def test_a_rank_that_cannot_be_started_leaves_none(native_tiny: Path, folder: Path) -> None:
    launch = Launched(most=1)
    start = with_sizes(make_start(native_tiny, ParallelConfig()), 1, 3)
    with pytest.raises(OSError, match="no process can be made"):
        RankedRunner(start, on_lost=pytest.fail, launch=launch)
    assert launch.statuses == [-signal.SIGKILL] or launch.statuses == [1]
    assert not list(folder.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_outlive_no_rank_0_that_is_killed_or_stopped(
    number: signal.Signals, native_tiny: Path, folder: Path
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from gpu_worker.main import end_at_once;"
        "from tests.gpu_worker.ranks.test_ranked_runner import load;"
        "runner = load(Path(sys.argv[1]), 1, 3, on_lost=end_at_once);"
        "print(*runner.follower_pids, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(native_tiny)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(folder)}
    ) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2
        process.send_signal(number)
        wait_until(lambda: not any(map(runs, pids)))
        process.send_signal(signal.SIGCONT)
        assert process.wait(EVENT_S) == (1 if number == signal.SIGSTOP else -signal.SIGKILL)
    assert not list(folder.iterdir())


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
