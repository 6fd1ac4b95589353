"""Says whether Triton can compile kernels for a GPU here, as it does when a model is loaded.

Triton builds a small C module with the system's compiler first: it needs Python's headers, and the
driver's library. Imports no Triton.
"""

import ctypes
import os
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from signalbox_kernels.own_folder import UnusableFolder
from signalbox_kernels.triton.kernel_cache import usable_folder

_COMPILERS = ("gcc", "clang")
_LIMIT_S = 60.0


@dataclass(frozen=True, slots=True)
class GpuCompiler:
    """Findings of `examine`: each part, None where it is missing; and problems, with remedies."""

    found: dict[str, str | None]
    problems: tuple[str, ...]


def examine(cuda_of_pytorch: str | None) -> GpuCompiler:
    """Examines this machine for a PyTorch that was built for such a version of CUDA."""
    compiler, driver = _c_compiler(), _cuda_of_driver()
    header = Path(sysconfig.get_path("include"), "Python.h")
    problems = [*_problems_of_compiler(compiler, header)]
    problems += _problems_of_driver(driver, cuda_of_pytorch)
    try:
        folder: str | None = str(usable_folder(None))
    except UnusableFolder as fault:
        folder = None
        problems.append(f"compiled kernels cannot be kept: {fault}; set --kernel-cache")
    found = {
        "C compiler": compiler,
        "Python.h": str(header) if header.is_file() else None,
        "CUDA of the driver": None if driver is None else f"{driver[0]}.{driver[1]}",
        "kernel cache": folder,
    }
    return GpuCompiler(found, tuple(problems))


def _problems_of_compiler(compiler: str | None, header: Path) -> Iterator[str]:
    if compiler is None and (named := os.environ.get("CC")) is not None:
        yield f"CC is {named!r}, which is no program; name a C compiler, or unset CC"
    elif compiler is None:
        yield "Triton needs a C compiler for its driver; install gcc and libc6-dev"
    if not header.is_file():
        yield f"Triton needs {header}; install python3-dev, or what has Python's headers"
    elif compiler is not None and (error := _error_of_compiling(compiler, header)) is not None:
        yield (
            f"{compiler} does not compile a file that includes Python.h ({error}); install "
            "libc6-dev, or name another compiler in CC"
        )


def _problems_of_driver(
    driver: tuple[int, int] | None, cuda_of_pytorch: str | None
) -> Iterator[str]:
    if driver is None:
        yield (
            "libcuda.so.1 does not load; install the NVIDIA driver, and for containers the NVIDIA "
            "container toolkit"
        )
    elif cuda_of_pytorch is not None and int(cuda_of_pytorch.partition(".")[0]) > driver[0]:
        yield (
            f"the NVIDIA driver runs CUDA {driver[0]}.{driver[1]}, and PyTorch is built for "
            f"{cuda_of_pytorch}; install a newer driver, or a PyTorch for CUDA {driver[0]}"
        )


def _c_compiler() -> str | None:
    """Returns the one that Triton would take, which is that of CC alone if it is set."""
    named = os.environ.get("CC")
    names = _COMPILERS if named is None else (named,)
    return next((path for name in names if (path := shutil.which(name))), None)


def _error_of_compiling(compiler: str, header: Path) -> str | None:
    """Returns what a compiler says of a shared library like Triton's; None if it makes one."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.c"), Path(folder, "probe.so")
        source.write_text(f"#include <{header.name}>\n")
        command = [
            compiler,
            "-shared",
            "-fPIC",
            f"-I{header.parent}",
            "-o",
            str(library),
            str(source),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if done.returncode or not library.exists():
            said = [line for line in done.stderr.splitlines() if "error" in line]
            return said[0] if said else f"it ended with status {done.returncode}"
    return None


def _cuda_of_driver() -> tuple[int, int] | None:
    """Returns the newest version of CUDA that the driver runs."""
    version = ctypes.c_int(0)
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)):
            return None
    except OSError:
        return None
    return version.value // 1000, version.value % 1000 // 10
