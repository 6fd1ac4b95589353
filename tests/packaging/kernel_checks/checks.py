"""Compiles and runs check_kernels.cpp, on this processor or on an emulated one."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from signalbox_kernels.compilation import SOURCES

ARM_COMPILER = "aarch64-linux-gnu-g++"


def compile_check(compiler: str, folder: Path) -> Path:
    target, here = folder / "check_kernels", Path(__file__).parent
    flags = ["-std=c++20", "-O1", "-static-libstdc++", "-static-libgcc", f"-I{SOURCES}"]
    source = str(here / "check_kernels.cpp")
    subprocess.run([compiler, *flags, source, "-ldl", "-o", str(target)], check=True)
    return target


def emulate(command: list[str], emulator: str, cpu: str) -> str:
    """Returns what a program writes on an emulated processor."""
    if not shutil.which(emulator):
        pytest.skip(f"there is no {emulator}")
    root = ["-L", "/usr/aarch64-linux-gnu"] if emulator == "qemu-aarch64" else []
    return output_of([emulator, *root, "-cpu", cpu, *command])


def output_of(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def assert_all_passed(output: str) -> None:
    passed, failed = map(int, re.findall(r"(\d+) checks passed, (\d+) failed", output)[0])
    assert passed > 10_000
    assert not failed
