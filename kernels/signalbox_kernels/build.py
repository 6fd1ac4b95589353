"""Finds the libraries of the native CPU path, or builds them with the system's C++ compiler.

A worker that finds no library of the present sources builds the common part and the instruction
set that it needs into the user's cache, once, and removes what no process has used for a month.
`python -m signalbox_kernels.build` puts all parts of
this architecture into the package's _build/ folder, where a wheel has them. A set that the compiler
cannot build is left out, and the next best serves.
"""

import contextlib
import fcntl
import hashlib
import itertools
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from signalbox_kernels.compilation import (
    COMMON,
    FLAGS,
    SOURCES,
    BuildError,
    BuildTimeout,
    Toolchain,
    compile_parts,
    flags_of_sets,
    machine,
    units,
)

__all__ = ["COMMON", "BuildError", "BuildTimeout", "build", "find_or_build", "on_compiled"]

logger = logging.getLogger(__name__)

on_compiled: Callable[[int, int], None] | None = None
"""Called with the number of compiled units and of all that a worker needs, on any thread; None by
default."""

UNUSED_S = 30 * 86400
"""Seconds without a use after which a library leaves the cache when another is built."""
_DIGEST_BYTES = hashlib.sha256().digest_size
"""Length of what `_seal` appends to a library."""
_SCRATCH = "build-"
"""Start of the names of folders that a build works in."""
_PACKAGE = Path(__file__).resolve().parent


def find_or_build(*parts: str) -> dict[str, Path | BuildError]:
    """Returns the libraries of the present sources, building those that are not there.

    The value of a part that cannot be built is the reason. Raises BuildError without a compiler or
    without a folder to write to.
    """
    found: dict[str, Path | BuildError] = {part: path for part in parts if (path := _find(part))}
    if len(found) == len(parts):
        return found
    toolchain = Toolchain(command=(compiler(),), machine=machine())
    folder = cache_folder()
    with only_builder(folder):
        found = {part: path for part in parts if (path := _find(part))}  # built by another process
        missing = [part for part in parts if part not in found]
        if missing:
            names = ", ".join(missing)
            logger.warning("compiling CPU kernels (%s) into %s; this is done once", names, folder)
            found |= build(missing, folder, toolchain)
            _remove_unused(folder)
    return found


def _remove_unused(folder: Path) -> None:
    """Removes libraries of any sources that were neither built nor found for `UNUSED_S`, and what
    builds that were killed as long ago have left."""
    for path in (*folder.glob("signalbox_*.so"), *folder.glob(f"{_SCRATCH}*")):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > UNUSED_S:
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def build(parts: Sequence[str], folder: Path, toolchain: Toolchain) -> dict[str, Path | BuildError]:
    """Builds libraries into `folder`, each in one atomic step; returns them, or what is wrong.

    Raises BuildTimeout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
        results = compile_parts(parts, Path(scratch), toolchain, _reporter(parts))
        for part, library in results.items():
            if isinstance(library, Path):
                _seal(library)
                target = folder / file_name(part, toolchain.machine)
                results[part] = library.replace(target)
    return results


def _reporter(parts: Sequence[str]) -> Callable[[], None]:
    """Returns a function that reports one more unit; the common part comes before a set."""
    num_before = 0 if COMMON in parts else len(units(COMMON))
    num_set, num_sets = len(units("")), len(set(parts) - {COMMON})
    num_total = len(units(COMMON)) + num_set * max(1, num_sets)
    num_done = itertools.count(num_before)

    def report() -> None:
        if on_compiled is not None:
            on_compiled(next(num_done), num_total)

    report()
    return report


def _seal(library: Path) -> None:
    """Appends the digest of a library, which loaders ignore."""
    with library.open("ab") as file:
        file.write(hashlib.sha256(library.read_bytes()).digest())


def _is_whole(library: Path) -> bool:
    """Says whether a library is as it was built: a cut one would end a process that loads it."""
    try:
        content = library.read_bytes()
    except OSError:  # no such file
        return False
    library_bytes, seal = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(library_bytes).digest() == seal


def _find(part: str) -> Path | None:
    name = file_name(part, machine())
    found = next((folder / name for folder in _folders() if _is_whole(folder / name)), None)
    if found is not None:
        with contextlib.suppress(OSError):  # a folder of another user
            os.utime(found)  # the last use
    return found


def _folders() -> list[Path]:
    """Returns the folders for libraries: in the package, the user's cache, the environment."""
    folders = [_PACKAGE / "_build", Path(sys.prefix) / "var" / "signalbox"]
    with contextlib.suppress(RuntimeError):  # a user without a home, as some containers have
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folders.insert(1, cache / "signalbox")
    return folders


def cache_folder() -> Path:
    """Returns the folder that libraries are built into. Raises BuildError if none will do."""
    return _first_writable(_folders()[1:])


def _first_writable(folders: Sequence[Path]) -> Path:
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        may_execute = not os.statvfs(folder).f_flag & os.ST_NOEXEC
        if os.access(folder, os.W_OK) and may_execute:  # else no library of it is loaded
            return folder
    names = ", ".join(map(str, folders))
    raise BuildError(f"none of {names} is writable and on a file system without noexec")


@contextlib.contextmanager
def only_builder(folder: Path) -> Iterator[None]:
    """Waits until no other process builds into the folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks: both of them build
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def file_name(part: str, of_machine: str) -> str:
    """Returns a name with a hash of sources and flags, so that a stale library is never loaded."""
    return f"signalbox_{part}-{_digest(of_machine)}.so"


@cache
def _digest(of_machine: str) -> str:
    flags = (FLAGS, flags_of_sets(of_machine), of_machine, sys.platform)
    digest = hashlib.sha256(repr(flags).encode())
    for source in sorted(SOURCES.rglob("*")):
        if source.suffix in (".cpp", ".h"):
            name = source.relative_to(SOURCES).as_posix()
            digest.update(name.encode() + source.read_bytes())
    return digest.hexdigest()[:16]


def compiler() -> str:
    """Returns the C++ compiler of the environment or of the system. Raises BuildError."""
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (found := shutil.which(name)):
            return found
    raise BuildError("there is no C++ compiler; install g++ or clang++")


def can_build() -> bool:
    """Returns whether there is a C++ compiler."""
    try:
        return bool(compiler())
    except BuildError:
        return False


def _main() -> None:
    toolchain = Toolchain(command=(compiler(),), machine=machine())
    parts = [COMMON, *flags_of_sets(toolchain.machine)]
    results = build(parts, _PACKAGE / "_build", toolchain)
    for part, result in results.items():
        if part == COMMON and isinstance(result, BuildError):
            raise result
        print(f"without {part}: {result}" if isinstance(result, BuildError) else result)


if __name__ == "__main__":
    try:
        _main()
    except BuildError as problem:
        sys.exit(f"the native CPU kernels were not built: {problem}")
