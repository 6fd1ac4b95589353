"""Instruction sets that this machine may lack: run in an emulator, or at least disassembled.

check_kernels.cpp compares products, attention and draws with plain loops; qemu-user runs it. Where
qemu or the cross compiler is missing, the tests skip. On Debian both come with
`apt-get install qemu-user g++-aarch64-linux-gnu`.
"""

import re
import shutil
import subprocess
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from signalbox_kernels import build
from signalbox_kernels.compilation import (
    COMMON,
    SOURCES,
    BuildError,
    Toolchain,
    compile_parts,
    flags_of_sets,
    machine,
)
from signalbox_kernels.native import Isa

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1800),  # compiles up to ten libraries
    pytest.mark.xdist_group("emulated"),
]

ARM = "aarch64"
ARM_COMPILER = "aarch64-linux-gnu-g++"
X86 = "x86_64"
NEON = [Isa.PORTABLE, Isa.NEON_DOTPROD, Isa.NEON_I8MM]


@dataclass(frozen=True)
class Compiled:
    """Libraries of an architecture, by part, and the program that checks them."""

    parts: dict[str, Path | BuildError]
    check: Path

    def path_of(self, part: str) -> str:
        found = self.parts[part]
        if isinstance(found, BuildError):
            pytest.skip(f"this compiler cannot build {part}: {found}")
        return str(found)

    def of_set(self, isa: Isa) -> list[str]:
        """Returns the command that checks a set."""
        return [
            str(self.check),
            self.path_of(COMMON),
            self.path_of(isa.name.lower()),
            str(int(isa)),
        ]

    def of_machine(self) -> list[str]:
        """Returns the command that prints the machine's sets."""
        return [str(self.check), self.path_of(COMMON)]


def compile_check(compiler: str, folder: Path) -> Path:
    target, here = folder / "check_kernels", Path(__file__).parent
    flags = ["-std=c++20", "-O1", f"-I{SOURCES}"]
    source = str(here / "check_kernels.cpp")
    subprocess.run([compiler, *flags, source, "-ldl", "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def x86(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    if machine() != X86:
        pytest.skip(f"this machine is no {X86}")
    try:
        compiler = build.compiler()
    except BuildError as error:
        pytest.skip(str(error))
    check = compile_check(compiler, tmp_path_factory.mktemp("x86"))
    return Compiled(build.find_or_build(COMMON, *flags_of_sets(X86)), check)


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    if not shutil.which(ARM_COMPILER):
        pytest.skip(f"there is no {ARM_COMPILER}")
    folder = tmp_path_factory.mktemp("arm")
    toolchain = Toolchain(command=(ARM_COMPILER,), machine=ARM)
    parts = compile_parts([COMMON, *flags_of_sets(ARM)], folder, toolchain, lambda: None)
    return Compiled(parts, compile_check(ARM_COMPILER, folder))


def emulate(command: list[str], emulator: str, cpu: str) -> str:
    """Returns what a program writes on an emulated processor."""
    if not shutil.which(emulator):
        pytest.skip(f"there is no {emulator}")
    root = ["-L", "/usr/aarch64-linux-gnu"] if emulator == "qemu-aarch64" else []
    done = subprocess.run([emulator, *root, "-cpu", cpu, *command], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def assert_all_passed(output: str) -> None:
    passed, failed = map(int, re.findall(r"(\d+) checks passed, (\d+) failed", output)[0])
    assert passed > 10_000
    assert not failed


@pytest.mark.parametrize(
    ("cpu", "sets"),
    [("max", NEON), ("cortex-a76", NEON[:2]), ("neoverse-n1", NEON[:2]), ("cortex-a72", NEON[:1])],
)
def test_kernels_on_arm(arm: Compiled, cpu: str, sets: list[Isa]) -> None:
    found = emulate(arm.of_machine(), "qemu-aarch64", cpu)
    assert [Isa(int(number)) for number in found.split()] == sets
    for isa in sets:
        assert_all_passed(emulate(arm.of_set(isa), "qemu-aarch64", cpu))


@pytest.mark.parametrize(
    ("cpu", "sets"),
    [
        ("max", [Isa.PORTABLE, Isa.AVX2]),  # of what the emulator has
        ("Haswell", [Isa.PORTABLE, Isa.AVX2]),
        ("Nehalem", [Isa.PORTABLE]),
    ],
)
def test_kernels_on_older_x86(x86: Compiled, cpu: str, sets: list[Isa]) -> None:
    found = {Isa(int(number)) for number in emulate(x86.of_machine(), "qemu-x86_64", cpu).split()}
    assert found & {Isa.PORTABLE, Isa.AVX2} == set(sets)
    for isa in sets:
        assert_all_passed(emulate(x86.of_set(isa), "qemu-x86_64", cpu))


def test_kernels_on_this_machine(x86: Compiled) -> None:
    """Without an emulator; so the program itself is checked where there is none."""
    found = subprocess.run(x86.of_machine(), capture_output=True, text=True, check=True).stdout
    for number in found.split():
        done = subprocess.run(x86.of_set(Isa(int(number))), capture_output=True, text=True)
        assert_all_passed(done.stdout)


def opcodes(library: str, objdump: str) -> Counter[str]:
    """Counts the instructions of a library, by name; of vectors with the widest register."""
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
X86_OPCODES = {
    "avx2": ({"vfmadd231ps", "vpmaddubsw", "ymm"}, {"zmm", "vpdpbusd"}),
    "avx2_vnni": ({"vfmadd231ps", "vpdpbusd", "ymm"}, {"zmm"}),
    "avx512": ({"vpmaddubsw", "zmm"}, {"vpdpbusd", "vdpbf16ps"}),
    "avx512_vnni": ({"vpdpbusd", "zmm"}, {"vdpbf16ps", "tdpbf16ps"}),
    "avx512_bf16": ({"vpdpbusd", "vdpbf16ps"}, {"tdpbf16ps", "tdpbsud", "ldtilecfg"}),
    "amx": ({"tdpbf16ps", "tdpbsud", "ldtilecfg", "vpdpbusd"}, set[str]()),
}
ARM_OPCODES = {
    "portable": ({"fmla"}, {"sdot", "udot", "usdot"}),
    "neon_dotprod": ({"fmla", "sdot"}, {"usdot"}),
    "neon_i8mm": ({"fmla", "usdot"}, set[str]()),
}


@pytest.mark.parametrize("part", X86_OPCODES)
def test_a_library_of_x86_holds_the_instructions_of_its_set_alone(x86: Compiled, part: str) -> None:
    found = opcodes(x86.path_of(part), "objdump")
    needed, forbidden = X86_OPCODES[part]
    assert needed <= set(found)
    assert not forbidden & set(found)


@pytest.mark.parametrize("part", [COMMON, "portable"])
def test_what_runs_on_any_x86_holds_no_vector_extension(x86: Compiled, part: str) -> None:
    found = opcodes(x86.path_of(part), "objdump")
    assert "mulps" in found
    assert not [name for name in found if name.startswith("v") or name in ("ymm", "zmm")]


@pytest.mark.parametrize("part", ARM_OPCODES)
def test_a_library_of_arm_holds_the_instructions_of_its_set_alone(arm: Compiled, part: str) -> None:
    found = opcodes(arm.path_of(part), "aarch64-linux-gnu-objdump")
    needed, forbidden = ARM_OPCODES[part]
    assert needed <= set(found)
    assert not forbidden & set(found)
