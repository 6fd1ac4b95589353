"""A trial costs a candidate, whatever the code under trial does to its process."""

import os
import time
from pathlib import Path

import pytest
import torch

from signalbox_worker.device.trials.trial import Trial
from signalbox_worker.device.trials.trial_runner import run_trials

CPU = torch.device("cpu")


def make_trial(function: str, *, limit_s: float = 300.0, **arguments: object) -> Trial:
    return Trial(
        name=function,
        function=f"tests.gpu_worker.device.trials.tried_code:{function}",
        arguments=arguments,
        limit_s=limit_s,
    )


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_process_makes_all_trials_that_go_well(tmp_path: Path) -> None:
    path = tmp_path / "processes"
    verdicts = run_trials([make_trial("say_process", path=str(path))] * 2, CPU)
    assert [verdict.seconds for verdict in verdicts] == [{"decode": 0.5}] * 2
    first, second = path.read_text().splitlines()
    assert first == second != f"{os.getpid()} cpu"


def test_what_ends_or_holds_the_process_is_a_fault_and_the_next_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler, path = tmp_path / "compiler", tmp_path / "processes"
    trials = [
        make_trial("abort"),
        make_trial("hang", limit_s=1.0, path=str(compiler)),
        make_trial("read_address_0"),
        make_trial("leave"),
        make_trial("be_killed"),
        make_trial("say_process", path=str(path)),
    ]
    verdicts = run_trials(trials, CPU)
    assert [verdict.fault for verdict in verdicts] == [
        "its process was killed by SIGABRT",
        "it has not ended within 1 s",
        "its process was killed by SIGSEGV",
        "its process exited with status 3",
        "its process was killed by SIGKILL",
        None,
    ]
    # A machine without memory kills, and a full one is slow.
    assert [verdict.is_lasting for verdict in verdicts] == [True, False, True, True, False, True]
    assert "said by a compiler" in caplog.text
    assert "and on stderr" in caplog.text
    assert "Segmentation fault" in caplog.text  # and where
    if compiler.exists():  # on a slow machine the second has passed before
        until = time.monotonic() + 60
        while is_alive(int(compiler.read_text())) and time.monotonic() < until:
            time.sleep(0.01)
        assert not is_alive(int(compiler.read_text()))
    assert path.exists()


@pytest.mark.parametrize(
    ("error", "is_lasting"),
    [("no C compiler", False), ("CUDA error: an illegal memory access was encountered", True)],
)
def test_an_error_is_a_fault_of_many_lines(
    error: str, is_lasting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (verdict,) = run_trials([make_trial("fail", error=f"{error}\nsecond line")], CPU)
    assert verdict.fault == f"RuntimeError: {error}\nsecond line"
    assert verdict.is_lasting == is_lasting
    assert "tried_code.py" in caplog.text  # its traceback


def test_a_device_that_no_second_process_may_use_is_a_fault_that_is_not_kept() -> None:
    (verdict,) = run_trials([make_trial("leave")], torch.device("cuda", 123))
    assert verdict.fault is not None
    assert not verdict.is_lasting
