"""Instruction sets that this machine may lack: run in an emulator, or at least disassembled.

check_kernels.cpp compares products, attention and draws with plain loops; qemu-user runs it. Where
qemu or the cross compiler is missing, the tests skip. On Debian both come with
`apt-get install qemu-user g++-aarch64-linux-gnu`.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from signalbox_kernels import build
from signalbox_kernels.compilation import (
    COMMON,
    BuildError,
    Toolchain,
    compile_parts,
    flags_of_sets,
    machine,
)
from signalbox_kernels.native import Isa
from tests.kernels.emulated.checks import (
    ARM_COMPILER,
    assert_all_passed,
    compile_check,
    emulate,
    output_of,
)
from tests.kernels.emulated.opcodes import assert_has_its_opcodes_alone

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(1800),  # compiles up to ten libraries
    pytest.mark.xdist_group("emulated"),
]

ARM = "aarch64"
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
    for number in output_of(x86.of_machine()).split():
        assert_all_passed(output_of(x86.of_set(Isa(int(number)))))


@pytest.mark.parametrize("part", [COMMON, *flags_of_sets(X86)])
def test_a_library_of_x86_holds_the_instructions_of_its_set_alone(x86: Compiled, part: str) -> None:
    assert_has_its_opcodes_alone(x86.path_of(part), X86, part)


@pytest.mark.parametrize("part", [COMMON, *flags_of_sets(ARM)])
def test_a_library_of_arm_holds_the_instructions_of_its_set_alone(arm: Compiled, part: str) -> None:
    assert_has_its_opcodes_alone(arm.path_of(part), ARM, part)
