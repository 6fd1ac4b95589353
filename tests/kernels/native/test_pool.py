"""The pool of threads that computes a step: no thread waits for one that has lost its core."""

import subprocess
from pathlib import Path

import pytest

from signalbox_kernels import build
from signalbox_kernels.compilation import FLAGS, SOURCES

_LIMIT_S = 300  # only reached by a pool that hangs


def test_a_tile_of_a_thread_that_does_not_go_on_is_computed_by_another(tmp_path: Path) -> None:
    try:
        compiler = build.compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    check = tmp_path / "pool_check"
    sources = [str(Path(__file__).parent / "pool_check.cpp"), str(SOURCES / "program" / "pool.cpp")]
    subprocess.run([compiler, *FLAGS, f"-I{SOURCES}", *sources, "-o", str(check)], check=True)
    run = subprocess.run([check], capture_output=True, text=True, timeout=_LIMIT_S)
    assert run.stdout == "ok\n"
