"""Version of an installed peer, and the instruction sets that its compiled library contains.

The sets are read from the machine code, because few programs tell, and some tell only what the
processor has. Code that a library makes at run time is not there; a peer that does so says it.
"""

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

_SIGNS = {
    "AVX2": r"%ymm",
    "AVX-512": r"%zmm",
    "VNNI": r"vpdpbusd",
    "BF16": r"vdpbf16ps",
    "AMX": r"\btdp",
}
"""A word that only instructions of the set have, in the order of the sets."""
JIT = "products compiled at run time for what the processor has (oneDNN)"


def version(environment: Path, package: str) -> str:
    """Returns the version of a package in a virtual environment, "?" if it is not there."""
    found = sorted(environment.glob(f"lib/python3.*/site-packages/{package}-*.dist-info"))
    return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found else "?"


def commit(clone: Path) -> str:
    """Returns the short name of the commit that a clone is at, "" where there is no clone."""
    if not (clone / ".git").exists():
        return ""
    command = ["git", "-C", str(clone), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@cache
def instruction_sets(library: Path) -> str:
    """Returns the instruction sets whose instructions a library has; takes up to 20 s."""
    if shutil.which("objdump") is None:
        return "instruction sets unknown: no objdump"
    if not library.exists():
        return f"instruction sets unknown: no {library.name}"
    command = ["objdump", "--disassemble", "--no-show-raw-insn", str(library)]
    missing = {name: re.compile(sign) for name, sign in _SIGNS.items()}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            for name in [name for name, sign in missing.items() if sign.search(line)]:
                del missing[name]
            if not missing:
                process.kill()
                break
    return " ".join(name for name in _SIGNS if name not in missing) or "no vector set above SSE"
