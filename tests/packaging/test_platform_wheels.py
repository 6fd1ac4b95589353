"""The wheels with compiled kernels that `make wheels` has put into dist/, where no compiler is.

They hold all instruction sets, so those that this machine lacks are tried here: qemu-user runs
check_kernels.cpp. Where qemu or the compiler for Arm is missing, those tests skip.
"""

import base64
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from signalbox.version import VERSION
from signalbox_kernels import build, native
from signalbox_kernels.compilation import COMMON, flags_of_sets, machine
from signalbox_kernels.native import ISA_VARIABLE, Isa
from tests.native_kernels import available_isas
from tests.packaging.kernel_checks.checks import (
    ARM_COMPILER,
    assert_all_passed,
    compile_check,
    emulate,
)
from tests.packaging.kernel_checks.opcodes import OBJDUMP, assert_has_its_opcodes_alone
from tests.signalbox import stacks

pytestmark = [
    pytest.mark.system,
    pytest.mark.xdist_group("wheels"),
]

ROOT = Path(__file__).parent.parent.parent
DIST = ROOT / "dist"
MODEL = str(ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf")
MACHINES = ("x86_64", "aarch64")
NEON = [Isa.PORTABLE, Isa.NEON_DOTPROD, Isa.NEON_I8MM]
GLIBC = (2, 17)
DEBIAN = "trixie"  # not the release that anything of ours is built on

GENERATE = """
import json, sys
from signalbox import LLM, SamplingParams

llm = LLM(sys.argv[1], num_threads=1)
(answer,) = llm.generate(["Hi"], SamplingParams(max_tokens=4), use_tqdm=False)
print(json.dumps(answer.outputs[0].text))
llm.close()
"""
REPORT = """
import json, os, shutil, sys
from pathlib import Path
from signalbox_kernels import build, native

best = native.best_isa()
print(json.dumps({
    "isa": best.name,
    "folders": sorted({str(Path(path).parent) for path in (
        build.find_or_build(build.COMMON, best.name.lower()).values())}),
    "compilers": [name for name in ("cc", "g++", "clang++", "c++") if shutil.which(name)],
    "home": os.listdir(Path.home()),
}))
"""


@dataclass(frozen=True)
class Wheel:
    machine: str
    archive: Path
    installed: Path
    """Folder that the wheel is unpacked into."""

    def path_of(self, part: str) -> str:
        name = build.file_name(part, self.machine)
        return str(self.installed / "signalbox_kernels" / "_build" / name)

    @property
    def parts(self) -> list[str]:
        return [COMMON, *flags_of_sets(self.machine)]


@pytest.fixture(scope="module", params=MACHINES)
def wheel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return unpacked(request.param, tmp_path_factory.mktemp(request.param))


def unpacked(of_machine: str, folder: Path) -> Wheel:
    tag = f"py3-none-manylinux_2_28_{of_machine}"
    archive = DIST / f"signalbox_serving-{VERSION}-{tag}.whl"
    if not archive.is_file():
        pytest.skip("there are no wheels with kernels; make wheels")
    with zipfile.ZipFile(archive) as files:
        files.extractall(folder)
    wheel = Wheel(of_machine, archive, folder)
    if not Path(wheel.path_of(COMMON)).is_file():
        pytest.skip("the wheels in dist/ are of other sources; make wheels")
    return wheel


def test_a_wheel_holds_the_kernels_of_all_sets_beside_the_pure_one(wheel: Wheel) -> None:
    (pure,) = DIST.glob("*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel.archive).namelist())
    built = {str(Path(wheel.path_of(part)).relative_to(wheel.installed)) for part in wheel.parts}
    assert names == set(zipfile.ZipFile(pure).namelist()) | built


def test_tag_and_record_are_of_the_platform(wheel: Wheel) -> None:
    archive = zipfile.ZipFile(wheel.archive)
    (record,) = [name for name in archive.namelist() if name.endswith(".dist-info/RECORD")]
    text = archive.read(record.replace("RECORD", "WHEEL")).decode()
    assert f"Tag: py3-none-manylinux_2_28_{wheel.machine}\n" in text
    assert "Root-Is-Purelib: false\n" in text
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(archive.read(record).decode()))}
    assert set(rows) == set(archive.namelist())
    for name, (digest, size) in rows.items():
        if name == record:
            continue
        content = archive.read(name)
        found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert (digest, size) == (f"sha256={found}", str(len(content)))


def test_libraries_need_no_newer_glibc_and_export_our_functions_alone(wheel: Wheel) -> None:
    objdump = OBJDUMP[wheel.machine]
    if not shutil.which(objdump):
        pytest.skip(f"there is no {objdump}")
    for part in wheel.parts:
        command = [objdump, "-T", wheel.path_of(part)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        needed = re.findall(r"GLIBC_([\d.]+)", text)
        assert max(tuple(map(int, version.split("."))) for version in needed) <= GLIBC
        exported = re.findall(r" g +DF \.text.* (\S+)$", text, re.MULTILINE)
        assert exported
        assert all(name.startswith("sb_") for name in exported)


def test_libraries_hold_the_instructions_of_their_set_alone(wheel: Wheel) -> None:
    for part in wheel.parts:
        assert_has_its_opcodes_alone(wheel.path_of(part), wheel.machine, part)


def check_best(command: list[str], wheel: Wheel, emulator: str, cpu: str) -> list[Isa]:
    """Checks the kernels of the best set that an emulated processor has; returns all of its sets.

    Args:
        command: the program that checks, and the common library.
    """
    sets = [Isa(int(number)) for number in emulate(command, emulator, cpu).split()]
    checks = [*command, wheel.path_of(sets[-1].name.lower()), str(int(sets[-1]))]
    assert_all_passed(emulate(checks, emulator, cpu))
    return sets


@pytest.mark.parametrize(
    ("cpu", "sets"), [("max", NEON), ("cortex-a76", NEON[:2]), ("cortex-a72", NEON[:1])]
)
def test_kernels_on_arm(cpu: str, sets: list[Isa], tmp_path: Path) -> None:
    wheel = unpacked("aarch64", tmp_path / "wheel")
    if not shutil.which(ARM_COMPILER):
        pytest.skip(f"there is no {ARM_COMPILER}")
    command = [str(compile_check(ARM_COMPILER, tmp_path)), wheel.path_of(COMMON)]
    assert check_best(command, wheel, "qemu-aarch64", cpu) == sets


@pytest.mark.parametrize(
    ("cpu", "sets"), [("Haswell", [Isa.PORTABLE, Isa.AVX2]), ("Nehalem", [Isa.PORTABLE])]
)
def test_kernels_on_older_x86(cpu: str, sets: list[Isa], tmp_path: Path) -> None:
    wheel = unpacked("x86_64", tmp_path / "wheel")
    if machine() != wheel.machine:
        pytest.skip(f"this machine is no {wheel.machine}")
    command = [str(compile_check(build.compiler(), tmp_path)), wheel.path_of(COMMON)]
    assert check_best(command, wheel, "qemu-x86_64", cpu) == sets


@pytest.fixture(scope="module")
def bare_system(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """Another release of Debian without a compiler; None where root or debootstrap is missing."""
    if os.geteuid() or not shutil.which("debootstrap"):
        return None
    root = tmp_path_factory.mktemp("debian") / "root"
    command = ["debootstrap", "--variant=minbase", "--include=python3", DEBIAN, str(root)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"no {DEBIAN}: {done.stdout[-500:]}{done.stderr[-500:]}", file=sys.stderr)
        return None
    return root


def run_bare(command: Sequence[str], wheel: Wheel, root: Path | None, home: Path) -> str:
    """Runs a command beside the unpacked wheel, without a compiler, and returns what it writes."""
    environment = {"PYTHONPATH": ".", "PATH": str(home), "HOME": str(home)}
    before: list[str] = []
    if root is not None:
        shutil.copytree(wheel.installed, root / "wheel", dirs_exist_ok=True)
        (root / "home").mkdir(exist_ok=True)
        environment = {"PYTHONPATH": ".", "PATH": "/usr/bin:/bin", "HOME": "/home"}
        before = ["/usr/sbin/chroot", str(root), "/usr/bin/env", "-C", "/wheel"]
    done = subprocess.run(
        [*before, *command], env=environment, cwd=wheel.installed, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_compiled_where_the_wheel_is(
    bare_system: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The set that is chosen is that of a build by this machine's compiler; all sets are right."""
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    wheel, home = unpacked(machine(), tmp_path / "wheel"), tmp_path / "home"
    home.mkdir()
    python = "/usr/bin/python3" if bare_system else sys.executable
    report = json.loads(run_bare([python, "-c", REPORT], wheel, bare_system, home))
    folder = Path("/wheel" if bare_system else wheel.installed) / "signalbox_kernels" / "_build"
    assert report == {
        "isa": native.best_isa().name,
        "folders": [str(folder)],
        "compilers": [],
        "home": [],
    }
    check = compile_check(build.compiler(), tmp_path)
    shutil.copy(check, wheel.installed / "check_kernels")

    def path_of(part: str) -> str:
        return f"./{Path(wheel.path_of(part)).relative_to(wheel.installed)}"

    command = ["./check_kernels", path_of(COMMON)]
    for number in run_bare(command, wheel, bare_system, home).split():
        checks = [*command, path_of(Isa(int(number)).name.lower()), number]
        assert_all_passed(run_bare(checks, wheel, bare_system, home))


@pytest.mark.model
def test_the_package_without_an_extra_serves_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve`, `run` and `LLM`, of the wheel in an environment of its own, without a compiler."""
    wheel, folder = unpacked(machine(), tmp_path / "wheel"), tmp_path / "environment" / "bin"
    subprocess.run([sys.executable, "-m", "venv", folder.parent], check=True)
    pip = [str(folder / "pip"), "install", "--quiet", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, str(wheel.archive)], check=True)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr(stacks, "COMMAND", [str(folder / "signalbox")])
    short = ("Hi", "--max-tokens", "4", "--json")
    with stacks.serve(tmp_path / "log", MODEL, "--num-threads", "1") as stack:
        served = stacks.signalbox("chat", "--router", stack.address, *short)
    ran = stacks.signalbox("run", MODEL, *short, "--num-threads", "1")
    in_process = subprocess.run(
        [str(folder / "python"), "-c", GENERATE, MODEL], capture_output=True, text=True
    )
    for done in (served, ran, in_process):
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)
    refused = stacks.signalbox("serve", MODEL, "--dtype", "float16")
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "pip install 'signalbox-serving[worker]'" in refused.stderr


def numbers_of(packages: Path) -> dict[str, dict[str, str]]:
    """Returns the hashes that tests.kernels.native.small_decoder prints of kernels in a folder.

    Each is of one storage and arithmetic, or of draws; they are grouped by instruction set.
    """
    environment = {name: value for name, value in os.environ.items() if name != ISA_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.native.small_decoder"],
        env=environment | {"PYTHONPATH": f"{packages}{os.pathsep}{ROOT}"},
        cwd=packages,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    if packages != ROOT / "kernels":  # whose libraries are there or in the user's cache
        assert all(Path(library).is_relative_to(packages) for library in report["libraries"])
    hashes: dict[str, dict[str, str]] = report["hashes"]
    return hashes


def test_both_compilers_builds_give_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a wheel, by Zig, and of a checkout, by this machine's compiler; of all sets here."""
    wheel = unpacked(machine(), tmp_path)
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    of_wheel, of_checkout = numbers_of(wheel.installed), numbers_of(ROOT / "kernels")
    assert set(of_wheel) == set(of_checkout) == {isa.name for isa in available_isas()}
    assert of_wheel == of_checkout
