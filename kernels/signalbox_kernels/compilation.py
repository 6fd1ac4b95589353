"""Compiles parts of the native CPU path (csrc/): what they are made of, their flags, the compiler.

A part is a library: the one that all processors share, or the kernels of one instruction set.
"""

import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

COMMON = "common"
"""The part that all instruction sets share."""

SOURCES = Path(__file__).resolve().parent / "csrc"
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-ffp-contract=off",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
)
_PORTABLE = ("-DSB_WIDTH=4",)
_AVX2 = ("-DSB_WIDTH=8", "-mavx2", "-mfma", "-mf16c")
_WIDE = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_AVX512 = ("-DSB_WIDTH=16", *_WIDE)
_VNNI = (*_AVX512, "-mavx512vnni")
BFLOAT16_FLAG = "-mavx512bf16"
"""Flag of the sets that multiply bfloat16."""
_BF16 = (*_VNNI, BFLOAT16_FLAG)
_SETS = {
    "x86_64": {
        "portable": _PORTABLE,
        "avx2": _AVX2,
        "avx2_vnni": (*_AVX2, "-mavxvnni"),
        "avx512": _AVX512,
        "avx512_vnni": _VNNI,
        "avx512_bf16": _BF16,
        "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    },
    "aarch64": {
        "portable": _PORTABLE,
        "neon_dotprod": ("-DSB_WIDTH=4", "-march=armv8.2-a+dotprod"),
        "neon_i8mm": ("-DSB_WIDTH=4", "-march=armv8.2-a+dotprod+i8mm"),
    },
}
_MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}
_TIMEOUT_S = 1800  # seconds on an idle machine


class BuildError(Exception):
    """A library cannot be built here; the message is one line."""


class BuildTimeout(BuildError):
    """The compiler did not end in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """A compiler and the architecture that it compiles for."""

    command: tuple[str, ...]
    machine: str
    """Architecture, as `machine` returns it."""
    spelled: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Flags of this compiler for those of GCC that it does not have."""
    link_flags: tuple[str, ...] = ()

    def flags(self, flags: Sequence[str]) -> list[str]:
        """Returns flags as this compiler spells them."""
        return [own for flag in flags for own in self.spelled.get(flag, (flag,))]


def machine() -> str:
    """Returns this machine's architecture by its name in Linux, such as "x86_64"."""
    name = platform.machine()
    return _MACHINES.get(name, name)


def flags_of_sets(of_machine: str) -> dict[str, tuple[str, ...]]:
    """Returns the flags of each set of an architecture, the set that runs anywhere first."""
    return _SETS.get(of_machine, {"portable": _PORTABLE})


def units(part: str) -> list[Path]:
    """Returns the sources of a part; all sets have the same."""
    of_sets = set((SOURCES / "isa" / "set").glob("*.cpp"))
    chosen = set(SOURCES.rglob("*.cpp")) - of_sets if part == COMMON else of_sets
    return sorted(chosen)


def compile_parts(
    parts: Sequence[str], folder: Path, toolchain: Toolchain, on_unit: Callable[[], None]
) -> dict[str, Path | BuildError]:
    """Links each part to a file in `folder`, compiling two units at a time.

    Calls `on_unit` after each unit, on any thread. Returns the library of each part, or what kept
    it from being built. Raises BuildTimeout, which may pass, so it must not exclude a set.
    """
    with ThreadPoolExecutor(2) as pool:

        def start(part: str, source: Path) -> Future[Path]:
            return pool.submit(_compile, part, source, folder, toolchain, on_unit)

        started = {part: [start(part, source) for source in units(part)] for part in parts}
        return {part: _link(part, objects, folder, toolchain) for part, objects in started.items()}


def _compile(
    part: str, source: Path, folder: Path, toolchain: Toolchain, on_unit: Callable[[], None]
) -> Path:
    target = folder / f"{part}-{source.stem}.o"
    flags = [*FLAGS, f"-I{SOURCES}"]
    if part != COMMON:
        flags += [f"-DSB_NS=sb_{part}"]
        flags += toolchain.flags(flags_of_sets(toolchain.machine)[part])
    try:
        _run([*toolchain.command, *flags, "-c", str(source), "-o", str(target)])
    finally:
        on_unit()
    return target


def _link(
    part: str, objects: Sequence[Future[Path]], folder: Path, toolchain: Toolchain
) -> Path | BuildError:
    library = folder / f"{part}.so"
    try:
        files = [str(unit.result()) for unit in objects]
        command = [*toolchain.command, "-shared", "-pthread", *toolchain.link_flags]
        _run([*command, *files, "-o", str(library)])
    except BuildTimeout:
        raise
    except BuildError as error:
        return error
    return library


def _run(command: list[str]) -> None:
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except OSError as error:
        raise BuildError(f"{command[0]} does not run: {error}") from None
    except subprocess.TimeoutExpired:
        raise BuildTimeout(f"{command[0]} took over {_TIMEOUT_S} s for one file") from None
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line]
        raise BuildError((lines or [f"{command[0]} failed with status {result.returncode}"])[0])
    if result.stderr:
        print(result.stderr, end="", file=sys.stderr)
