"""The script for the first minutes on a card, where none is; and the wheels that it unpacks."""

import hashlib
import json
import subprocess
import sys
import tarfile
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts import gpu_wheels
from tests.waiting import wait_until_ended

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_first_minutes.sh"
EXTRAS = ("worker",)
NOT_NEEDED = {"setuptools", "mpmath", "networkx", "sympy", "filelock", "fsspec", "triton"}
THERE = ("torch", "transformers", "tokenizers", "numpy", "pytest", "pytest-xdist")
"""What a machine is to have, each with all that it needs."""


def needed_by(names: list[str]) -> set[str]:
    """Returns the names and all that they need here, as installed."""
    found: set[str] = set()
    while names:
        name = canonicalize_name(names.pop())
        if name in found:
            continue
        found.add(name)
        requirements = map(Requirement, metadata.requires(name) or [])
        names += [
            one.name
            for one in requirements
            if one.marker is None or one.marker.evaluate({"extra": ""})
        ]
    return found


def test_wheels_and_what_is_there_are_all_that_services_workers_and_tests_need() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [
        line for extra in EXTRAS for line in project["optional-dependencies"][extra]
    ]
    ours = [Requirement(line).name for line in lines if not line.startswith(project["name"])]
    tests = ["hypothesis", "psutil", "pytest-asyncio", "pytest-timeout"]
    missing = needed_by([*ours, *tests]) - set(gpu_wheels.NAMES) - needed_by([*THERE])
    assert not missing


def test_each_wheel_has_a_pinned_version() -> None:
    pinned = gpu_wheels.pinned((ROOT / "constraints.txt").read_text())
    assert pinned.keys() >= set(gpu_wheels.NAMES)
    assert pinned["grpcio"].startswith("grpcio==")


def test_what_is_too_large_is_named(tmp_path: Path) -> None:
    (tmp_path / "small-1.whl").write_bytes(b"1")
    with (tmp_path / "large-1.whl").open("wb") as file:
        file.truncate(gpu_wheels.LIMIT_BYTES)  # takes no room on the disk
    with pytest.raises(RuntimeError, match=r"the largest are large-1.whl \(60.0 MB\), small"):
        gpu_wheels.check_size(tmp_path, 1000)


def test_a_model_is_split_and_each_part_has_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_wheels, "PART_BYTES", 1000)
    model = tmp_path / "a.gguf"
    model.write_bytes(bytes(range(250)) * 10)
    gpu_wheels.split_model(model, tmp_path / "gpu_model_")
    parts = [tmp_path / f"gpu_model_{i}" / f"a.gguf.{i}_of_3" for i in (1, 2, 3)]
    assert b"".join(part.read_bytes() for part in parts) == model.read_bytes()
    for part in parts:
        digest, name = (part.parent / gpu_wheels.SUMS).read_text().split()
        assert (digest, name) == (hashlib.sha256(part.read_bytes()).hexdigest(), part.name)


def run_script(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Runs the script with work and results below a folder, and no wheels."""
    command = [str(SCRIPT), "--device", "cpu", "--tiny", "--wheels", str(folder / "wheels")]
    command += [f"--work={folder / 'work'}", f"--output={folder / 'out'}"]
    if "--python" not in flags:
        command += ["--python", sys.executable]
    separated = [part for flag in command for part in flag.split("=", 1)]
    return subprocess.run([*separated, *flags], capture_output=True, text=True, check=False)


def make_program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.system
def test_stages_leave_their_results_and_are_not_done_twice(tmp_path: Path) -> None:
    done = run_script(tmp_path, "--stages", "imports,steps")
    assert done.returncode == 0, done.stdout + done.stderr
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert [line.split()[:2] for line in summary.splitlines()[:3]] == [
        ["wheels", "passed"],
        ["imports", "passed"],
        ["steps", "passed"],
    ]
    assert "decode of 1, context 48: step" in (tmp_path / "out" / "figures.md").read_text()
    with tarfile.open(tmp_path / "out" / "results.tar.gz") as archive:
        names = archive.getnames()
        figures = archive.extractfile("stages/steps/gpu.json")
        assert figures is not None
        parts = json.load(figures)["parts"]
    assert [part["name"] for part in parts] == ["roofline", "probes", "steps"]
    assert {"stages/imports/log.txt", "stages/steps/gpu-steps.log"} <= set(names)
    again = run_script(tmp_path, "--stages", "imports,steps", "--resume")
    assert again.returncode == 0
    assert "== steps" not in again.stdout


@pytest.mark.system
def test_a_stage_that_fails_or_hangs_stops_no_other(tmp_path: Path) -> None:
    program = make_program(
        tmp_path / "python",
        f'case "$*" in "-m pytest"*) sleep 600 & echo $! > {tmp_path}/pid; wait;; *) exit 3;; esac',
    )
    flags = ("--python", str(program), "--limit", "5")
    done = run_script(tmp_path, "--stages", "imports,card,steps", *flags)
    assert done.returncode == 1
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert "imports    FAILED with status 3" in summary
    assert "card       FAILED: not done within its limit" in summary
    assert "steps      FAILED with status 3" in summary
    wait_until_ended(int((tmp_path / "pid").read_text()))
    done = run_script(tmp_path, "--stages", "imports", "--python", str(program), "--total", "5")
    assert "== imports: no time is left" in done.stdout


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--stages", "one"), "there is no stage or group one"),
        (("--device", "tpu"), "--device is tpu; it is cuda or cpu"),
        (("--fast",), "--fast needs a value, or is no option"),
        (("--python", "no-such-python"), "there is no program no-such-python"),
    ],
)
def test_what_is_wrong_with_a_flag_is_said(
    flags: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = run_script(tmp_path, *flags)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
