"""Compiles the native CPU path (csrc/) with the system's C++ compiler.

`python -m signalbox_kernels.build` puts the library into the package's _build/ folder. A worker
that finds none there builds one into the user's cache, once for each state of the sources. Each
instruction set is a translation unit with its own flags; one that the compiler cannot build is left
out, and the next best serves.
"""

import hashlib
import itertools
import logging
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parent
_SOURCES = _PACKAGE / "csrc"
_COMMON = ("api", "dispatch", "pack", "pool", "program", "quantise", "sampler")
_FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-pthread",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
)
_AVX2 = ("-mavx2", "-mfma")
_AVX512 = (*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
_VNNI = (*_AVX512, "-mavx512vnni")
_BF16 = (*_VNNI, "-mavx512bf16")
_SETS = {
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_vnni": _VNNI,
    "avx512_bf16": _BF16,
    "amx": (*_BF16, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
}
on_compiled: Callable[[int, int], None] | None = None
"""Called with the number of compiled units and of all, on any thread; None by default."""

_TIMEOUT_S = 1800  # seconds on an idle machine
_X86 = ("x86_64", "AMD64")


class BuildError(Exception):
    """The library cannot be built here; the message is one line."""


class BuildTimeout(BuildError):
    """The compiler did not end in time."""


def find_or_build() -> Path:
    """Returns the library of the present sources, building it if there is none."""
    name = _library_name()
    for folder in _folders():
        if (folder / name).is_file():
            return folder / name
    folder = _first_writable(_folders()[1:])
    logger.warning("compiling the native CPU kernels into %s; this is done once", folder)
    return build(folder)


def build(folder: Path) -> Path:
    """Builds the library into `folder`, in one atomic step, and returns it."""
    compiler = _compiler()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / _library_name()
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
        library = _compile(compiler, Path(scratch))
        library.replace(target)
    return target


def _folders() -> list[Path]:
    """Returns the folders for a library: in the package, the user's cache, the environment."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return [_PACKAGE / "_build", cache / "signalbox", Path(sys.prefix) / "var" / "signalbox"]


def _first_writable(folders: Sequence[Path]) -> Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise BuildError(f"none of {', '.join(map(str, folders))} is writable")


def _library_name() -> str:
    """Returns a name with a hash of sources and flags, so that a stale library is never loaded."""
    digest = hashlib.sha256(repr((_FLAGS, _SETS, platform.machine(), sys.platform)).encode())
    for source in sorted(_SOURCES.rglob("*")):
        if source.suffix in (".cpp", ".h"):
            name = source.relative_to(_SOURCES).as_posix()
            digest.update(name.encode() + source.read_bytes())
    return f"signalbox_kernels-{digest.hexdigest()[:16]}.so"


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("there is no C++ compiler (g++ or clang++)")


def _compile(compiler: str, scratch: Path) -> Path:
    """Compiles every unit, two at a time, and links those that could be built."""
    sources = {source.stem: source for source in _SOURCES.rglob("*.cpp")}
    sets = list(_SETS) if platform.machine() in _X86 else []
    others = (*_COMMON, "kernels_portable")
    num_units = len(sets) + len(others)
    num_done = itertools.count(1)
    _report(0, num_units)

    def unit(name: str, flags: Sequence[str] = ()) -> Path:
        target = scratch / f"{name}.o"
        options = (*_FLAGS, f"-I{_SOURCES}", *flags)
        try:
            _run([compiler, *options, "-c", str(sources[name]), "-o", str(target)])
        finally:
            _report(next(num_done), num_units)
        return target

    def of_set(name: str) -> Path | None:
        try:
            return unit(f"kernels_{name}", (*_SETS[name], _have(name)))
        except BuildTimeout:
            raise  # a timeout may pass, so it must not exclude the set
        except BuildError as error:  # an old compiler: the next best set serves
            print(f"the native CPU kernels do without {name}: {error}", file=sys.stderr)
            return None

    with ThreadPoolExecutor(2) as pool:
        built = dict(zip(sets, pool.map(of_set, sets), strict=True))
        there = [name for name, target in built.items() if target is not None]
        flags = [_have(name) for name in there]
        objects = list(pool.map(lambda name: unit(name, flags), others))
    objects += [target for target in built.values() if target is not None]
    library = scratch / "library.so"
    _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(library)])
    return library


def _report(num_done: int, num_units: int) -> None:
    if on_compiled is not None:
        on_compiled(num_done, num_units)


def _have(name: str) -> str:
    return f"-DSB_HAVE_{name.upper()}"


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


if __name__ == "__main__":
    try:
        print(build(_PACKAGE / "_build"))
    except BuildError as problem:
        sys.exit(f"the native CPU kernels were not built: {problem}")
