"""Instructions in libraries of kernels: those that each set must have, and those it must not."""

import re
import shutil
import subprocess
from collections import Counter

import pytest

OBJDUMP = {"x86_64": "objdump", "aarch64": "aarch64-linux-gnu-objdump"}


def opcodes(library: str, machine: str) -> Counter[str]:
    """Counts the instructions of a library, by name; of vectors with the widest register."""
    objdump = OBJDUMP[machine]
    if not shutil.which(objdump):
        pytest.skip(f"there is no {objdump}")
    command = [objdump, "-d", "--no-show-raw-insn", library]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found: Counter[str] = Counter()
    for name, operands in re.findall(r"^ +[0-9a-f]+:\t(?:\{vex\} )?(\w+)(.*)$", text, re.MULTILINE):
        found[name] += 1
        found.update({width for width in ("ymm", "zmm") if f"%{width}" in operands})
    return found


# What a set's library must hold; what it must not, since lesser processors would stop there.
OPCODES: dict[str, dict[str, tuple[set[str], set[str]]]] = {
    "x86_64": {
        "avx2": ({"vfmadd231ps", "vpmaddubsw", "ymm"}, {"zmm", "vpdpbusd"}),
        "avx2_vnni": ({"vfmadd231ps", "vpdpbusd", "ymm"}, {"zmm"}),
        "avx512": ({"vpmaddubsw", "zmm"}, {"vpdpbusd", "vdpbf16ps"}),
        "avx512_vnni": ({"vpdpbusd", "zmm"}, {"vdpbf16ps", "tdpbf16ps"}),
        "avx512_bf16": ({"vpdpbusd", "vdpbf16ps"}, {"tdpbf16ps", "tdpbsud", "ldtilecfg"}),
        "amx": ({"tdpbf16ps", "tdpbsud", "ldtilecfg", "vpdpbusd"}, set()),
    },
    "aarch64": {
        "common": (set(), {"sdot", "udot", "usdot"}),
        "portable": ({"fmla"}, {"sdot", "udot", "usdot"}),
        "neon_dotprod": ({"fmla", "sdot"}, {"usdot"}),
        "neon_i8mm": ({"fmla", "usdot"}, set()),
    },
}


def assert_has_its_opcodes_alone(library: str, machine: str, part: str) -> None:
    """Checks a library of the kernels of a set, or the common one."""
    found = set(opcodes(library, machine))
    if machine == "x86_64" and part in ("common", "portable"):
        assert "mulps" in found
        assert not [name for name in found if name.startswith("v") or name in ("ymm", "zmm")]
        return
    needed, forbidden = OPCODES[machine][part]
    assert needed <= found
    assert not forbidden & found
