"""The imports that are allowed: the arrows of the architecture, and nothing else."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

BELOW_SERVICES = {"signalbox_protos", "signalbox_contract", "signalbox_rpc"}
ALLOWED: dict[str, set[str]] = {
    "signalbox_protos": set(),
    "signalbox_contract": {"signalbox_protos"},
    "signalbox_rpc": {"signalbox_protos", "signalbox_contract"},
    "signalbox_kernels": set(),
    "signalbox_client": {"signalbox_protos"},
    "signalbox_router": BELOW_SERVICES,
    "signalbox_scheduler": BELOW_SERVICES,
    "signalbox_worker": BELOW_SERVICES | {"signalbox_kernels"},
    "signalbox": BELOW_SERVICES
    | {
        "signalbox_router",
        "signalbox_scheduler",
        "signalbox_worker",
        "signalbox_kernels",
        "signalbox_client",
    },
}
OLD_NAMES = {"gpu_worker", "protos", "scheduler_svc"}
"""Names that packages outside of this repository may import until the next release."""
ALLOWED_OF_PROTOS: dict[str, set[str]] = {
    "common": set(),
    "inference": set(),
    "worker": {"common"},
    "scheduler": {"common"},
    "operations": {"scheduler"},  # for operators, who see a scheduler as it is
    "recording": {"common", "worker", "scheduler"},  # files, which hold messages of both
}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PLACES: dict[str, str] = PYPROJECT["tool"]["setuptools"]["package-dir"]
FOLDERS = {name: ROOT / PLACES.get(name, name) for name in ALLOWED}
HEAVY = {"torch", "transformers"}
MAY_IMPORT_HEAVY = {"signalbox_worker", "signalbox_kernels"}
ONLY_FROM_CONTRACT = {"signalbox_rpc": "signalbox_contract.errors"}
"""The one module of contract/ that a package may import."""
GRPC = {"grpc", "grpc_health", "grpc_reflection", "grpc_status"}
PROTOBUF_SERVICES = ("signalbox_router", "signalbox_scheduler", "signalbox_worker")


def imported_modules(source: str) -> Iterator[str]:
    """Yields the absolute names of modules that the source imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


def forbidden_imports(package: str, source: str) -> list[str]:
    """Returns the imports in `source` that a module of `package` may not have."""
    allowed = ALLOWED[package] | {package}
    forbidden = (set() if package in MAY_IMPORT_HEAVY else HEAVY) | OLD_NAMES
    forbidden |= ALLOWED.keys() - allowed
    if package == "signalbox_contract":
        forbidden |= GRPC
    only = ONLY_FROM_CONTRACT.get(package)
    return [
        name
        for name in imported_modules(source)
        if (top := name.split(".")[0]) in forbidden
        or (top == "signalbox_contract" and only is not None and name != only)
    ]


def touches_protobuf(path: Path) -> bool:
    return any(
        name.startswith(("signalbox_protos", "google.protobuf", "smg_grpc_proto"))
        for name in imported_modules(path.read_text(encoding="utf-8"))
    )


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_is_below_it(package: str) -> None:
    paths = sorted(FOLDERS[package].rglob("*.py"))
    assert paths
    found = {path: forbidden_imports(package, path.read_text(encoding="utf-8")) for path in paths}
    assert not {str(path): names for path, names in found.items() if names}


@pytest.mark.parametrize("package", ALLOWED_OF_PROTOS)
def test_no_contract_imports_another(package: str) -> None:
    paths = sorted((FOLDERS["signalbox_protos"] / package).rglob("*.proto"))
    assert paths
    found = {
        name
        for path in paths
        for name in re.findall(
            r'^import "signalbox_protos/(\w+)/', path.read_text("utf-8"), re.MULTILINE
        )
    }
    assert found <= ALLOWED_OF_PROTOS[package] | {package}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("signalbox_router", "import torch"),
        ("signalbox_router", "import protos.inference.v1"),
        ("signalbox_router", "def f():\n    from signalbox_scheduler import plan"),
        ("signalbox_scheduler", "import signalbox_worker.service.worker"),
        ("signalbox_rpc", "from signalbox_router.config import RouterConfig"),
        ("signalbox_rpc", "from signalbox_contract.columns import pack_int32"),
        ("signalbox_rpc", "from signalbox_contract import columns"),
        ("signalbox_contract", "from signalbox_rpc.transport import server"),
        ("signalbox_contract", "import grpc"),
        ("signalbox_worker", "import signalbox_scheduler"),
        ("signalbox_kernels", "from signalbox_rpc import errors"),
    ],
)
def test_another_arrow_is_found(package: str, source: str) -> None:
    assert forbidden_imports(package, source)


def test_protobuf_stays_at_the_edges_of_a_service() -> None:
    """codec, servicer and clients, and main.py, which adds servicers to servers."""
    inside = [
        path
        for service in PROTOBUF_SERVICES
        for path in FOLDERS[service].rglob("*.py")
        if path.stem not in ("codec", "servicer", "main")
        and not path.stem.endswith(("_client", "_codec", "_servicer"))
        and touches_protobuf(path)
    ]
    assert not [str(path.relative_to(ROOT)) for path in inside]


def modules_of(package: str) -> list[str]:
    """Returns names of modules, without those that import Ray where it is not installed."""
    return sorted(
        ".".join(path.relative_to(FOLDERS[package].parent).with_suffix("").parts)
        for path in FOLDERS[package].rglob("*.py")
        if find_spec("ray") or "ray" not in imported_modules(path.read_text(encoding="utf-8"))
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("signalbox_contract", HEAVY | GRPC),
        ("signalbox_rpc", HEAVY),
        ("signalbox_router", HEAVY),
        ("signalbox_scheduler", HEAVY),
        ("signalbox", HEAVY),
    ],
)
def test_importing_all_of_a_package_does_not_load(package: str, absent: set[str]) -> None:
    """Also what it imports through others; in a process of its own."""
    lines = [f"import {module.removesuffix('.__init__')}" for module in modules_of(package)]
    script = "\n".join([*lines, "import sys", f"print({absent!r} & sys.modules.keys() or '')"])
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_only_the_reader_of_old_checkpoints_knows_pickle() -> None:
    unsafe = {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    found = {
        path
        for package in ALLOWED
        for path in FOLDERS[package].rglob("*.py")
        if unsafe & set(imported_modules(path.read_text(encoding="utf-8")))
    }
    (path,) = found
    assert path == FOLDERS["signalbox_worker"] / "files/checkpoints/torch_file.py"
    reader = path.read_text(encoding="utf-8")
    assert reader.count("torch.load(") == reader.count("weights_only=True") == 1


def test_a_checkout_is_found_beside_the_folder_that_it_lies_in(tmp_path: Path) -> None:
    """There is a folder called signalbox where a checkout lies, without a module in it."""
    (tmp_path / "signalbox").mkdir()
    command = [sys.executable, "-c", "import signalbox; print(signalbox.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("__init__.py")
