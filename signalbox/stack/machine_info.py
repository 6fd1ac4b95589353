"""Reads facts about this machine: processor, memory, compilers, NVIDIA driver.

It reads procfs and the versions of tools; it imports no code of the worker.
"""

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_TOOL_TIMEOUT_S = 10.0
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""

CPU_FEATURES = (
    "avx2",
    "fma",
    "avx512f",
    "avx512bw",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "i8mm",
    "bf16",
    "sve",
)
"""CPU features that decide which kernels can run, by Linux's names."""
COMPILERS = ("g++", "clang++", "nvcc")


def cpu_model() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def cpu_features() -> list[str]:
    """Returns those of CPU_FEATURES that the processor has; none if Linux does not list them."""
    words = (_cpuinfo("flags") or _cpuinfo("Features") or "").split()
    return [name for name in CPU_FEATURES if name in words]


def usable_cores() -> int:
    """Returns the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def total_memory() -> int:
    """Returns the machine's memory in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def listener_of(port: int) -> tuple[int, list[str]] | None:
    """Returns process id and command line of the process that listens on a TCP port.

    None if no process does, or only one whose files this user may not see.
    """
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    for files in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(str(file.readlink()) in sockets for file in files.iterdir()):
                words = (files.parent / "cmdline").read_bytes().split(b"\0")[:-1]
                return int(files.parent.name), [os.fsdecode(word) for word in words]
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                address, state = fields[1], fields[3]
                if state == _LISTEN and int(address.rpartition(":")[2], 16) == port:
                    yield fields[9]


def compilers() -> dict[str, str | None]:
    """Returns the version of each of COMPILERS; None for those that are missing."""
    return {name: _tool_version(name) for name in COMPILERS}


def nvidia_gpus() -> list[str]:
    """Returns "name, memory, driver" of each GPU, from the NVIDIA driver's own tool."""
    fields = "--query-gpu=name,memory.total,driver_version"
    return (_output("nvidia-smi", fields, "--format=csv,noheader") or "").splitlines()


def _tool_version(name: str) -> str | None:
    lines = (_output(name, "--version") or "").splitlines()
    return (
        next((line for line in lines if "release" in line or "version" in line), lines[0])
        if lines
        else None
    )


def _output(*command: str) -> str | None:
    """Returns a tool's output; None if it is missing or fails."""
    if not (path := shutil.which(command[0])):
        return None
    try:
        done = subprocess.run(
            [path, *command[1:]], capture_output=True, text=True, timeout=_TOOL_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpuinfo(key: str) -> str | None:
    for line in _read(_CPUINFO).splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
