"""The live line of a start, and the log lines that stand for it where there is no terminal."""

import io
import sys

import pytest

from signalbox.stack.processes.startup_display import REMIND_S, StartupDisplay, own_progress
from signalbox_contract.startup import StartupPhase, StartupProgress
from tests.clock import Clock

ERASE = "\r\x1b[K"


def test_a_terminal_has_one_live_line_and_each_phase_leaves_its_own() -> None:
    stream, clock = io.StringIO(), Clock()
    display = StartupDisplay(stream, is_live=True, clock=clock)
    clock.now = 1.0
    display.refresh()
    assert stream.getvalue() == f"{ERASE}starting (1 s)\r"
    for num_done in range(14):
        display.report("worker 0", StartupProgress(StartupPhase.COMPILE, num_done, 13))
    clock.now = 42.0
    display.refresh()
    display.report("worker 0", StartupProgress(StartupPhase.LOAD, 1, 4))
    clock.now = 44.0
    display.close()
    written = stream.getvalue()
    assert written.endswith(ERASE)
    lines = [line.rpartition(ERASE)[2] for line in written.split("\n")[:-1]]
    assert lines == [
        "worker 0: compiling the CPU kernels, 13 of 13 (41 s)",
        "worker 0: loading the weights, 25 % (2 s)",
    ]


def test_workers_share_the_live_line() -> None:
    stream = io.StringIO()
    display = StartupDisplay(stream, is_live=True, clock=Clock())
    display.report("worker 0", StartupProgress(StartupPhase.LOAD))
    display.report("worker 1", StartupProgress(StartupPhase.IMPORT))
    live = stream.getvalue().rpartition(ERASE)[2]
    assert live == "worker 0: loading the weights (0 s); worker 1: importing PyTorch (0 s)\r"


def test_a_phase_is_logged_when_it_begins_and_then_seldom(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    stream, clock = io.StringIO(), Clock()
    display = StartupDisplay(stream, is_live=False, clock=clock)
    for num_done in range(4):
        display.report("worker 0", StartupProgress(StartupPhase.LOAD, num_done, 4))
        display.refresh()
    clock.now = REMIND_S
    display.refresh()
    display.refresh()
    display.report("worker 0", StartupProgress(StartupPhase.PROFILE))
    display.close()
    assert caplog.messages == [
        "worker 0: loading the weights, 0 %",
        "worker 0: loading the weights, 75 % (10 s)",
        "worker 0: profiling the model",
    ]
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_live", [True, False])
def test_workers_that_start_later_are_logged_and_those_before_them_not_again(
    caplog: pytest.LogCaptureFixture, *, is_live: bool
) -> None:
    caplog.set_level("INFO")
    stream, clock = io.StringIO(), Clock()
    display = StartupDisplay(stream, is_live=is_live, clock=clock)
    display.close()
    drawn = stream.getvalue()
    display.report("worker 1", StartupProgress(StartupPhase.PROFILE))
    clock.now = 8 * REMIND_S
    display.report("worker 2", StartupProgress(StartupPhase.LOAD))
    assert caplog.messages == ["worker 1: profiling the model", "worker 2: loading the weights"]
    assert stream.getvalue() == drawn


def test_a_process_of_the_users_own_shows_its_phases_and_clears_the_live_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with own_progress() as progress:
        progress(StartupProgress(StartupPhase.LOAD, 1, 4))
    assert f"{ERASE}loading the weights, 25 % (0 s)\n{ERASE}" in terminal.getvalue()
    assert terminal.getvalue().endswith(ERASE)
