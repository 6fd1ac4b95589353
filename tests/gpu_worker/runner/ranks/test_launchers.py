"""How a rank that is a process of this machine has ended."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from signalbox_worker.runner.ranks import launchers
from signalbox_worker.runner.ranks.launchers import LocalRank
from tests.waiting import EVENT_S

pytestmark = pytest.mark.system

SLOW_END = "import time; time.sleep(1.5); raise SystemExit(3)"


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalRank]:
    """One whose stream has ended, and which takes its time to leave."""
    start = subprocess.Popen

    def start_slow_end(_command: list[str], **options: object) -> object:
        return start([sys.executable, "-c", SLOW_END], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(launchers.subprocess, "Popen", start_slow_end)
    monkeypatch.setattr(launchers, "_END_S", EVENT_S)
    one = LocalRank(1, "unix:none")
    yield one
    one.kill()
    one._process.wait()


def test_of_a_rank_that_takes_its_time_to_end_the_status_is_told(rank: LocalRank) -> None:
    assert rank.how_it_ended() == "exited with status 3"


@pytest.mark.timeout(EVENT_S / 2)
def test_a_rank_that_was_stopped_is_not_waited_for(rank: LocalRank) -> None:
    rank._process.send_signal(signal.SIGSTOP)
    assert rank.how_it_ended() == "no longer answers"
