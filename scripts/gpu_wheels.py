"""Gathers the wheels that a machine with a card, PyTorch and no package index lacks.

    python scripts/gpu_wheels.py --python-version 3.12 [--machine x86_64] [--model FILE]

The versions are those of constraints.txt, for a Python and a platform that need not be this one's,
with a list of their hashes. `scripts/gpu_first_minutes.sh` checks and unpacks them there. Wheels
and repository together may take 60 MB, so that both travel with one command. A model is split into
parts that travel one with a command, and is joined there.
"""

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEELS = "build/gpu_wheels"
MODEL_PART = "build/gpu_model_"
SUMS = "SHA256SUMS"
LIMIT_BYTES = 60_000_000
PART_BYTES = 33_000_000
GLIBC = range(5, 36)
"""Minor versions of glibc whose wheels are taken, the oldest first: up to that of Ubuntu 22.04."""

_NAMES = """
annotated-doc annotated-types anyio certifi charset-normalizer click fastapi fastapi-swagger gguf
googleapis-common-protos grpcio grpcio-health-checking grpcio-reflection grpcio-status h11
hypothesis idna jinja2 llguidance markdown-it-py markupsafe mdurl opentelemetry-api
opentelemetry-exporter-http-transport opentelemetry-exporter-otlp-common
opentelemetry-exporter-otlp-proto-common opentelemetry-exporter-otlp-proto-grpc
opentelemetry-exporter-otlp-proto-http opentelemetry-proto opentelemetry-sdk
opentelemetry-semantic-conventions prometheus-client protobuf psutil pydantic pydantic-core
pygments pytest-asyncio pytest-timeout requests rich shtab smg-grpc-proto sortedcontainers
starlette typing-extensions typing-inspection urllib3 uvicorn
"""
NAMES = _NAMES.split()
"""Packages that our code and tests import, but those that PyTorch, transformers, pytest bring."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    folder = options.out or ROOT / WHEELS
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        download(folder, python_version=options.python_version, machine=options.machine)
        write_sums(folder)
        print(f"{len(list(folder.glob('*.whl')))} wheels in {folder}")
        check_size(folder, repository_bytes())
        if options.model is not None:
            split_model(options.model, folder.parent / Path(MODEL_PART).name)
    except (OSError, RuntimeError) as error:
        print(f"gpu_wheels: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--python-version", required=True, metavar="3.N", help="of that machine")
    parser.add_argument("--machine", default="x86_64", help="its architecture, or aarch64")
    parser.add_argument("--model", type=Path, help="a model's file to split into parts as well")
    parser.add_argument("--out", type=Path, help=f"a folder (default {WHEELS})")
    return parser


def pinned(text: str) -> dict[str, str]:
    """Returns the requirement of each name in constraints.txt."""
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return {_normal(line.partition("==")[0]): line for line in lines if line}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def download(folder: Path, *, python_version: str, machine: str) -> None:
    """Fetches the wheels, and nothing that they depend on. Raises RuntimeError."""
    constraints = pinned((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    platforms = [f"manylinux{year}_{machine}" for year in (1, 2010, 2014)]
    platforms += [f"manylinux_2_{minor}_{machine}" for minor in GLIBC]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--implementation=cp", "--dest", str(folder)]
    command += [f"--python-version={python_version}", *(f"--platform={one}" for one in platforms)]
    if subprocess.run([*command, *(constraints[name] for name in NAMES)]).returncode:
        raise RuntimeError("pip found no wheel for one of the packages; see its message above")


def write_sums(folder: Path) -> None:
    """Writes the hashes of all files, as sha256sum reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def repository_bytes() -> int:
    """Returns the size of the tracked files, as they travel."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        raise RuntimeError(f"git archive failed: {archive.stderr.decode().strip()}")
    return len(archive.stdout)


def check_size(folder: Path, repository: int) -> None:
    """Raises RuntimeError that names the largest wheels if all is too large to travel."""
    sizes = {path.name: path.stat().st_size for path in folder.glob("*.whl")}
    total = sum(sizes.values()) + repository
    print(f"{total / 1e6:.1f} MB, of which the repository is {repository / 1e6:.1f}")
    if total > LIMIT_BYTES:
        largest = sorted(sizes, key=lambda name: -sizes[name])[:5]
        words = ", ".join(f"{name} ({sizes[name] / 1e6:.1f} MB)" for name in largest)
        raise RuntimeError(
            f"wheels and repository take {total / 1e6:.1f} MB, more than {LIMIT_BYTES / 1e6:.0f}; "
            f"the largest are {words}"
        )


def split_model(model: Path, prefix: Path) -> None:
    """Splits a file into parts that each have room beside wheels and repository."""
    num_parts = -(-model.stat().st_size // PART_BYTES)
    with model.open("rb") as source:
        for part in range(1, num_parts + 1):
            folder = Path(f"{prefix}{part}")
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            target = folder / f"{model.name}.{part}_of_{num_parts}"
            target.write_bytes(source.read(PART_BYTES))
            write_sums(folder)
            print(f"{target.stat().st_size / 1e6:.1f} MB in {folder}")


if __name__ == "__main__":
    sys.exit(main())
