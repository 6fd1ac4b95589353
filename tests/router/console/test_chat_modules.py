"""The console's modules without DOM, run in Node."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import signalbox_router

STATIC = Path(signalbox_router.__file__).parent / "console/static"
FOLDERS = {name.upper(): str(STATIC / name) for name in ("chat", "live", "why")}
HERE = Path(__file__).parent
FIRST_NODE = (20, 19)
"""The first version that takes a file of `export`s as a module without being told."""


def node() -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("Node is not installed")
    version = subprocess.check_output([program, "--version"], text=True).strip().lstrip("v")
    if tuple(map(int, version.split(".")[:2])) < FIRST_NODE:
        pytest.skip(f"Node {version} is too old")
    return program


@pytest.mark.parametrize("tests", sorted(HERE.glob("*.test.mjs")), ids=lambda path: path.name)
def test_modules_in_node(tests: Path) -> None:
    environment = os.environ | FOLDERS | {"NODE_NO_WARNINGS": "1"}
    ran = subprocess.run(
        [node(), "--test", "--test-reporter=tap", tests],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "# pass 0" not in ran.stdout, ran.stdout
