"""When and how the libraries of the native kernels are built; the compiler is mostly a script."""

import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from signalbox_kernels import build, native
from signalbox_kernels.compilation import COMMON, SOURCES, flags_of_sets, machine, units
from signalbox_kernels.native import ISA_VARIABLE, Isa, NativeUnavailable

SETS = tuple(flags_of_sets(machine()))


def make_compiler(folder: Path, *, fails_for: str = "nothing") -> Path:
    """Returns a compiler that writes empty files, logs their names and fails for some of them."""
    compiler = folder / "g++"
    log = folder / "compiled"
    compiler.write_text(
        "#!/bin/sh\nfor last; do :; done\n"
        f'case "$last" in *{fails_for}*) echo "error: unknown set" >&2; exit 1;; esac\n'
        f'basename "$last" >> {log}\n: > "$last"\n'
    )
    compiler.chmod(0o755)
    return log


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Empty folders for libraries instead of the real ones: the package's, and the user's."""
    made = [tmp_path / "package", tmp_path / "user"]
    monkeypatch.setattr(build, "_folders", lambda: made)
    monkeypatch.delenv("CXX", raising=False)
    return made


def test_without_a_compiler_the_reason_is_one_line(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"^there is no C\+\+ compiler"):
        build.find_or_build(COMMON)


@pytest.mark.parametrize("damage", ["", "half", "altered"])
def test_a_library_that_is_not_as_it_was_built_is_built_again(
    damage: str, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system ends a process that loads a library which is cut, each time that it starts."""
    log = make_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    library = build.find_or_build(COMMON)[COMMON]
    assert isinstance(library, Path)
    whole = library.read_bytes()
    cut = whole[: len(whole) // 2]
    library.write_bytes({"": b"", "half": cut, "altered": b"?" + whole[1:]}[damage])
    log.write_text("")
    assert build.find_or_build(COMMON)[COMMON] == library
    assert library.read_bytes() == whole
    assert log.read_text()


def test_a_user_without_a_home_has_the_folder_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a container's process of any number that its system does not know."""
    for variable in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", dict[int, Any]().__getitem__)
    package, of_environment = build._folders()
    assert package.is_relative_to(SOURCES.parent)
    assert of_environment.is_relative_to(sys.prefix)


def test_a_folder_on_a_file_system_without_execution_is_passed_over(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {folders[1]: os.ST_NOEXEC}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags.get(path, 0)))
    with pytest.raises(build.BuildError, match="without noexec"):
        build.cache_folder()
    folders.append(tmp_path / "environment")
    assert build.cache_folder() == folders[-1]


def test_a_library_of_the_package_is_not_built_again(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    built = build.find_or_build(COMMON)[COMMON]
    assert isinstance(built, Path) and built.parent == folders[1]
    folders[0].mkdir()
    shutil.copy(built, folders[0])
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", os.devnull)
    found = build.find_or_build(COMMON)[COMMON]
    assert isinstance(found, Path)
    assert found.parent == folders[0]


def test_only_the_parts_that_are_asked_for_are_compiled(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = make_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    best = SETS[-1]
    build.find_or_build(COMMON)
    build.find_or_build(best)
    expected = {f"{part}-{unit.stem}.o" for part in (COMMON, best) for unit in units(part)}
    assert set(log.read_text().split()) == {*expected, f"{COMMON}.so", f"{best}.so"}
    names = {build.file_name(part, machine()) for part in (COMMON, best)}
    assert {path.name for path in folders[1].iterdir()} == {*names, ".lock"}
    log.write_text("")
    build.find_or_build(COMMON, best)
    assert not log.read_text()


def test_libraries_that_no_process_uses_any_more_leave_the_cache(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    library = build.find_or_build(COMMON)[COMMON]
    assert isinstance(library, Path)
    stale, recent = (library.with_name(f"signalbox_{name}.so") for name in ("a-1", "b-2"))
    left = library.with_name("build-of-one-that-was-killed")
    left.mkdir()
    (left / "unit.o").touch()
    for path in (stale, recent):
        path.touch()
    for path, unused_s in ((library, 60), (stale, 60), (recent, -60), (left, 60)):
        then = time.time() - build.UNUSED_S - unused_s
        os.utime(path, (then, then))
    build.find_or_build(COMMON)
    assert stale.exists()  # nothing was built
    build.find_or_build(SETS[-1])
    assert not stale.exists() and not left.exists()
    assert recent.exists() and library.exists()


def test_each_unit_that_is_compiled_is_told(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start that builds the common part and one set counts up to one total."""
    make_compiler(tmp_path)
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(build, "on_compiled", lambda *counts: told.append(counts))
    build.find_or_build(COMMON)
    build.find_or_build(SETS[-1])
    total = len(units(COMMON)) + len(units(SETS[-1]))
    assert sorted(set(told)) == [(done, total) for done in range(total + 1)]


def test_a_set_that_the_compiler_lacks_is_an_error_of_its_own(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_compiler(tmp_path, fails_for=SETS[-1])
    monkeypatch.setenv("CXX", str(tmp_path / "g++"))
    results = build.find_or_build(COMMON, *SETS)
    assert [part for part, result in results.items() if not isinstance(result, Path)] == [SETS[-1]]
    assert str(results[SETS[-1]]) == "error: unknown set"


@pytest.mark.skipif(len(SETS) == 1, reason="this architecture has one set")
def test_the_next_best_set_serves_where_the_best_cannot_be_had(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    tried: list[str] = []

    def unavailable(part: str) -> None:
        tried.append(part)
        raise NativeUnavailable("no compiler")

    monkeypatch.setattr(native, "_machine_sets", lambda: [Isa.PORTABLE, Isa[SETS[-1].upper()]])
    monkeypatch.setattr(native, "_load", unavailable)
    monkeypatch.setattr(native, "_loaded", {Isa.PORTABLE: object()})
    assert native.best_isa() is Isa.PORTABLE
    assert tried == [SETS[-1]]


def test_two_processes_build_a_part_once(folders: list[Path], tmp_path: Path) -> None:
    log = make_compiler(tmp_path)
    script = (
        "import sys; from pathlib import Path; from signalbox_kernels import build;"
        f"build._folders = lambda: [Path(name) for name in {list(map(str, folders))!r}];"
        f"build.find_or_build({COMMON!r})"
    )
    environment = {
        **os.environ,
        "CXX": str(tmp_path / "g++"),
        "PYTHONPATH": str(SOURCES.parents[1]),
    }
    command = [sys.executable, "-c", script]
    processes = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    assert log.read_text().split().count(f"{COMMON}.so") == 1
