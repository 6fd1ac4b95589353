"""What a process with limits may take, and when it ends."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from signalbox_rpc.lifetime.limited_program import NO_LIMITS, ProgramLimits, command
from tests.rpc.lifetime import limited_jobs

PARENT = """
import subprocess
from signalbox_rpc.lifetime.limited_program import ProgramLimits, command
from tests.rpc.lifetime import limited_jobs
started = command(limited_jobs.__name__, "wait", limits=ProgramLimits(ends_with_input=True))
subprocess.Popen(started, stdin=subprocess.PIPE).wait()
"""


@pytest.mark.parametrize(
    ("job", "limits", "status", "output"),
    [
        (["spin"], ProgramLimits(cpu_s=1), -signal.SIGXCPU, "spins\n"),
        (["spin_in_second_job"], NO_LIMITS, -signal.SIGXCPU, "True\nspins\n"),
        (["take", "512"], ProgramLimits(memory_bytes=256 << 20), 0, ""),
        (["take", "512"], NO_LIMITS, 0, "took 512\n"),
        (["write", "file"], NO_LIMITS, 0, "OSError\n"),
    ],
)
def test_the_kernel_holds_a_program_to_its_limits(
    job: list[str], limits: ProgramLimits, status: int, output: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        command(limited_jobs.__name__, *job, limits=limits),
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, output, "")
    assert not [file for file in tmp_path.iterdir() if file.stat().st_size]


def test_a_lower_limit_that_the_parent_has_stays() -> None:
    limits = ProgramLimits(cpu_s=7000, memory_bytes=1 << 41)
    program = shlex.join(command(limited_jobs.__name__, "show_limits", limits=limits))
    limited = f"ulimit -v {1 << 30}; ulimit -t 5000; {program}"
    out = subprocess.check_output(["bash", "-c", limited], text=True)
    assert out == f"{[(1 << 40, 1 << 40), (5000, 5000)]}\n"


def test_a_program_imports_what_its_parent_does_after_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, place in (("colorsys", Path(os.__file__).parent), ("of_the_parent", tmp_path)):
        (tmp_path / f"{name}.py").touch()
        out = subprocess.check_output(command(limited_jobs.__name__, "find", name), text=True)
        assert out == f"{place / name}.py\n"


def test_a_program_that_reads_no_input_ends_with_its_parent() -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], env=environment, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "waits\n"
        parent.kill()
        assert parent.stdout.read() == ""  # once the program has ended, too
