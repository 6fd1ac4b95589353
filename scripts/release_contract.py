"""Keeps the contract of a release: an image to compare later ones with, and a corpus of bytes.

Usage: python scripts/release_contract.py VERSION, from the repository root.
"""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.protos import corpus

RELEASED = Path("tests/protos/released")


def main() -> None:
    """Writes both files, unless the version has been released."""
    (version,) = sys.argv[1:] or sys.exit(__doc__)
    image, specimens = RELEASED / f"{version}.binpb", corpus.FOLDER / f"{version}.jsonl"
    if image.exists():
        sys.exit(f"{image} exists; what is released stays as it is")
    for path in (image, specimens):
        path.parent.mkdir(exist_ok=True)
    buf = Path(sys.executable).with_name("buf")
    subprocess.run([buf, "build", "--exclude-source-info", "-o", image], check=True)
    corpus.write(specimens)
    print(f"wrote {image} and {specimens}")


if __name__ == "__main__":
    main()
