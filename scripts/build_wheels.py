"""Builds dist/: an sdist, the pure wheel, and for each platform a wheel with compiled kernels.

    python scripts/build_wheels.py [MACHINE ...]

Zig compiles all instruction sets of x86_64 and aarch64 on any machine, for glibc 2.17 and up. It
needs setuptools and ziglang; `make wheels` has them in an environment of its own.
"""

import base64
import csv
import hashlib
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "kernels"))

from signalbox_kernels.build import build  # noqa: E402
from signalbox_kernels.compilation import (  # noqa: E402
    COMMON,
    BuildError,
    Toolchain,
    flags_of_sets,
)

MACHINES = ("x86_64", "aarch64")
GLIBC = "2.17"
PLATFORM = "manylinux_2_28"
FOLDER = "signalbox_kernels/_build"  # in the wheel
# Zig turns off what the least processor lacks, vectors of 512 bits included. For Arm it takes the
# name of a processor where GCC takes a version of the architecture.
SPELLED = {
    "-mavx512f": ("-mavx512f", "-mevex512"),
    "-march=armv8.2-a+dotprod": ("-mcpu=generic+dotprod",),
    "-march=armv8.2-a+dotprod+i8mm": ("-mcpu=generic+dotprod+i8mm",),
}
EPOCH = (1980, 1, 1, 0, 0, 0)  # of files in the archive: equal sources make equal wheels


def zig(machine: str) -> Toolchain:
    """Returns Zig for the least processor of an architecture; a set adds what it needs.

    Without a target Zig would compile for the processor that it runs on. It writes what a debugger
    needs unless told not to, which takes a third of its time, and the linker drops it.
    """
    target = f"{machine}-linux-gnu.{GLIBC}"
    command = (sys.executable, "-m", "ziglang", "c++", "-g0", "-target", target)
    return Toolchain(command=command, machine=machine, spelled=SPELLED, link_flags=("-s",))


def compile_kernels(machine: str, folder: Path) -> list[Path]:
    """Returns the libraries of all parts of an architecture. Raises BuildError."""
    results = build([COMMON, *flags_of_sets(machine)], folder, zig(machine))
    for part, result in results.items():
        if isinstance(result, BuildError):
            raise BuildError(f"{part} of {machine}: {result}")
    return [result for result in results.values() if isinstance(result, Path)]


def with_kernels(pure: Path, libraries: Iterable[Path], machine: str) -> Path:
    """Writes a pure wheel again with libraries, tagged for their platform, and returns it."""
    tag = f"py3-none-{PLATFORM}_{machine}"
    target = pure.with_name(pure.name.replace("py3-none-any", tag))
    with zipfile.ZipFile(pure) as source:
        files = {name: source.read(name) for name in source.namelist()}
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    wheel = record.replace("/RECORD", "/WHEEL")
    text = files[wheel].decode()
    text = text.replace("py3-none-any", tag)
    files[wheel] = text.replace("Root-Is-Purelib: true", "Root-Is-Purelib: false").encode()
    files |= {f"{FOLDER}/{path.name}": path.read_bytes() for path in libraries}
    del files[record]
    files[record] = _record(files, record)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return target


def _record(files: dict[str, bytes], itself: str) -> bytes:
    """Returns the list of a wheel's files, with their hashes and sizes."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
        writer.writerow([name, f"sha256={digest.decode()}", len(content)])
    writer.writerow([itself, "", ""])
    return text.getvalue().encode()


def build_pure(dist: Path) -> Path:
    """Builds sdist and pure wheel of the working tree; returns the wheel."""
    for leftover in ("lib", "bdist.*"):  # files that were removed since would get into the wheel
        for path in (ROOT / "build").glob(leftover):
            shutil.rmtree(path)
    script = (
        "from setuptools import build_meta;"  # which changes sys.argv
        f"build_meta.build_sdist({str(dist)!r}); print(build_meta.build_wheel({str(dist)!r}))"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return dist / done.stdout.splitlines()[-1]


def main(machines: Iterable[str]) -> None:
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir()
    pure = build_pure(dist)
    for machine in machines:
        print(f"compiling the kernels for {machine}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            with_kernels(pure, compile_kernels(machine, Path(folder)), machine)
    for path in sorted(dist.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:] or MACHINES)
