"""The wheel holds what runs, and nothing else; the container images are made of the same."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.lowest_versions import lowest, requirements
from tests.signalbox import stacks
from tests.test_imports import FOLDERS, OLD_NAMES

ROOT = Path(__file__).parent.parent.parent
SOURCES = ("pyproject.toml", "README.md", "LICENSE")
PACKAGES = {name: str(folder.relative_to(ROOT)) for name, folder in FOLDERS.items()} | {
    name: f"old_names/{name}" for name in OLD_NAMES
}
SUFFIXES = {".py", ".pyi", ".proto", ".typed", ".cpp", ".jinja", ".h", ".json",
            ".js", ".css", ".html", ".svg", ".md", ".txt"}  # fmt: skip
UNTRACKED = {"__pycache__", "_build"}


def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files_of(package: str) -> Iterator[str]:
    """Yields what the wheel should hold of a package, by its path in the wheel."""
    folder = ROOT / PACKAGES[package]
    for path in folder.rglob("*"):
        inside = path.relative_to(folder)
        if path.is_file() and not UNTRACKED.intersection(inside.parts):
            yield f"{package}/{inside.as_posix()}"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that nothing is left in the working tree, and nothing old gets in."""
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        (source / name).write_bytes((ROOT / name).read_bytes())
    for package, folder in PACKAGES.items():
        for name in files_of(package):
            target = source / folder / Path(name).relative_to(package)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / folder / Path(name).relative_to(package)).read_bytes())
    (source / "tests").mkdir()
    (source / "tests" / "__init__.py").touch()
    script = "import sys; from setuptools import build_meta; print(build_meta.build_wheel('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=source, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(source / "dist" / done.stdout.splitlines()[-1])


def test_the_wheel_holds_every_file_of_our_packages_and_nothing_else(
    wheel: zipfile.ZipFile,
) -> None:
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == {name for package in PACKAGES for name in files_of(package)}
    assert {Path(name).suffix for name in found} <= SUFFIXES


def test_images_of_router_and_scheduler_hold_no_code_of_the_worker_but_its_settings(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    """Both services start from what the Dockerfile leaves of the wheel, and a worker does not."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (script,) = re.findall(r'RUN \S+/python -c "(.*?)"\n', dockerfile, re.DOTALL)
    wheel.extractall(tmp_path)
    own = {"PYTHONPATH": str(tmp_path), "SIGNALBOX_MAX_NUM_SEQS": "4"}  # of workers, in all images

    def start(*command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=tmp_path,
            env=stacks.of_service() | own,
            stderr=subprocess.PIPE,
            text=True,
        )

    with start("-c", script.replace("\\\n", "")) as pruned:
        assert pruned.wait() == 0
    left = {path.stem for path in (tmp_path / "signalbox_worker").rglob("*.py")} - {"__init__"}
    assert {"worker_settings", "config"} < left
    assert not [name for name in left if not re.search("settings|config|opt|field|url", name)]
    assert not (tmp_path / "signalbox_kernels").exists()
    # What is gone would be found in the checkout, where that is installed.
    (tmp_path / "signalbox_kernels.py").write_text("raise ModuleNotFoundError(name=__name__)")
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'editable' not in repr(f)]\n"
    )
    nobody = ("--no-http", "--grpc-port=0", "--scheduler=127.0.0.1:1")
    for command, sign in (
        (("scheduler", "--port=0"), "listening on"),
        (("router", *nobody), "gRPC at"),
    ):
        with start("-m", "signalbox", *command) as service:
            assert service.stderr is not None
            lines = []
            for line in service.stderr:
                lines.append(line)
                if sign in line:
                    service.terminate()
        assert sign in "".join(lines), lines
    for command in (("worker", "--simulate"), ("serve", "--simulate"), ("doctor",)):
        with start("-m", "signalbox", *command) as refused:
            _, said = refused.communicate()
        assert refused.returncode == 1
        assert said.count("\n") == 1 and "use the image gpu-worker" in said, said


def test_every_package_is_typed(wheel: zipfile.ZipFile) -> None:
    typed = {name.split("/")[0] for name in wheel.namelist() if name.endswith("/py.typed")}
    assert typed == set(FOLDERS)


def test_services_need_no_torch_and_workers_do(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    lines = wheel.read(name).decode().splitlines()
    needs = [line.removeprefix("Requires-Dist: ") for line in lines if line.startswith("Requires-")]
    assert not [need for need in needs if re.match("torch|transformers", need) and ";" not in need]
    always = {re.split("[>=]", need)[0] for need in needs if ";" not in need}
    assert {"gguf", "huggingface-hub"} <= always
    extras = ("cpu", "worker", "gpu", "bench", "dev")
    assert {f"Provides-Extra: {extra}" for extra in extras} < set(lines)


def test_links_of_the_description_lead_to_what_is_here(wheel: zipfile.ZipFile) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
    description = wheel.read(name).decode().partition("\n\n")[2]
    links = re.findall(r"\]\(([^)\s]+)\)", description)
    assert links
    for link in links:
        assert (ROOT / link.partition("#")[0]).exists(), link


def test_every_dependency_has_a_lower_bound() -> None:
    all_of_worker = requirements(pyproject()["project"], ["worker", "receipts"])
    assert len(list(lowest(all_of_worker))) == len(all_of_worker)


def test_lower_bounds_admit_what_gpu_images_carry() -> None:
    carried = {
        "torch": (2, 11),
        "transformers": (5, 17),
        "tokenizers": (0, 23, 2),
        "numpy": (2, 5, 2),
        "safetensors": (0, 8),
        "huggingface-hub": (1, 33),
    }
    all_of_worker = requirements(pyproject()["project"], ["worker", "receipts"])
    bounds = dict(requirement.split("==") for requirement in lowest(all_of_worker))
    for name, version in carried.items():
        assert tuple(map(int, bounds[name].split("."))) <= version
    assert not [requirement for requirement in all_of_worker if "<" in requirement]


def test_constraints_are_within_the_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if "==" in line)
    project = pyproject()["project"]
    for requirement in lowest(project["dependencies"]):
        name, _, least = requirement.partition("==")
        pinned = re.findall(r"\d+", pins[name])
        assert [int(part) for part in pinned] >= [int(part) for part in least.split(".")]


def test_images_install_what_the_worker_needs_before_the_wheel(tmp_path: Path) -> None:
    """The lists of the Dockerfile name no package of ours, which pip would look for on PyPI."""
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    (script,) = re.findall(r'RUN python -c "(.*?)"\n', dockerfile, re.DOTALL)
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    subprocess.run([sys.executable, "-c", script.replace("\\\n", "")], cwd=tmp_path, check=True)
    listed = [(tmp_path / name).read_text().splitlines() for name in ("service.txt", "worker.txt")]
    needed = requirements(pyproject()["project"], ["worker", "receipts"])
    assert set(listed[0] + listed[1]) == set(needed)


def test_compose_runs_each_target_of_the_dockerfile() -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]
    targets = {service["build"]["target"] for service in services.values()}
    assert targets == set(services) == {"router", "scheduler", "gpu-worker"}
    assert targets <= set(re.findall(r"^FROM .* AS (\S+)$", dockerfile, re.MULTILINE))
    for service in services.values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]


def test_only_what_the_wheel_is_made_of_is_sent_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "*" in lines
    sent = {line.removeprefix("!") for line in lines if line.startswith("!")}
    folders = {folder.rpartition("/")[0] or folder for folder in PACKAGES.values()}
    assert sent == {*SOURCES, "constraints.txt", *folders}
