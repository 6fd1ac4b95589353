"""What keeps Triton from compiling on a machine with a GPU, as `doctor` reports it."""

import sysconfig
from pathlib import Path

import pytest

from signalbox_worker.runner import gpu_compiler


def make_program(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(autouse=True)
def _complete_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "Python.h").touch()
    make_program(tmp_path / "gcc", 'while [ "$1" != -o ]; do shift; done; : > "$2"')
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    monkeypatch.setattr(gpu_compiler, "_cuda_of_driver", lambda: (13, 0))


def test_a_complete_machine_has_no_problem(tmp_path: Path) -> None:
    examined = gpu_compiler.examine("13.0")
    assert examined.problems == ()
    assert examined.found == {
        "C compiler": str(tmp_path / "gcc"),
        "Python.h": str(tmp_path / "Python.h"),
        "CUDA of the driver": "13.0",
        "kernel cache": str(tmp_path / "kernels"),
    }


def test_each_missing_thing_is_a_problem_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "Python.h").unlink()
    (tmp_path / "gcc").unlink()
    (tmp_path / "kernels").touch()
    monkeypatch.setattr(gpu_compiler, "_cuda_of_driver", lambda: None)
    examined = gpu_compiler.examine("13.0")
    assert set(examined.found.values()) == {None}
    for remedy in ("install gcc", "python3-dev", "NVIDIA driver", "--kernel-cache"):
        assert any(remedy in problem for problem in examined.problems), remedy


def test_a_compiler_that_is_named_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Triton tries no other."""
    make_program(tmp_path / "other", 'while [ "$1" != -o ]; do shift; done; : > "$2"')
    monkeypatch.setenv("CC", "other")
    assert gpu_compiler.examine("13.0").found["C compiler"] == str(tmp_path / "other")
    for named in ("other -m64", ""):
        monkeypatch.setenv("CC", named)
        examined = gpu_compiler.examine("13.0")
        assert examined.found["C compiler"] is None
        assert examined.problems == (
            f"CC is {named!r}, which is no program; name a C compiler, or unset CC",
        )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("echo 'probe.c:1:10: fatal error: limits.h: No such file' >&2; exit 1", "limits.h: No"),
        ("exit 3", "status 3"),
        ("exit 0", "status 0"),
    ],
)
def test_a_compiler_that_makes_no_library_is_a_problem(
    program: str, reason: str, tmp_path: Path
) -> None:
    make_program(tmp_path / "gcc", program)
    (problem,) = gpu_compiler.examine("13.0").problems
    assert reason in problem
    assert "install libc6-dev, or name another compiler in CC" in problem


@pytest.mark.parametrize(
    ("driver", "pytorch", "is_problem"),
    [((12, 9), "13.0", True), ((12, 4), "12.9", False), ((13, 1), "12.8", False)],
)
def test_a_driver_runs_every_minor_version_of_its_cuda(
    monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int], pytorch: str, is_problem: bool
) -> None:
    monkeypatch.setattr(gpu_compiler, "_cuda_of_driver", lambda: driver)
    assert (
        any("newer driver" in one for one in gpu_compiler.examine(pytorch).problems) is is_problem
    )
