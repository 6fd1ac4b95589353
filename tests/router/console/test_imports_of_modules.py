"""The console's own modules import what exists: one missing name, and a browser shows no view."""

import re
from pathlib import Path

import pytest

import signalbox_router

STATIC = Path(signalbox_router.__file__).parent / "console/static"
MODULES = [path for path in sorted(STATIC.rglob("*.js")) if path.parent.name != "vendor"]
_IMPORT = re.compile(r'(?:import|export)\s+(?:\{([^}]*)\}|[^;{]*?)\s*from\s+"([^"]+)"')


def exports(path: Path) -> set[str]:
    """Returns the names that a module exports."""
    text = path.read_text()
    names = re.findall(r"^export (?:async )?(?:function\*?|class|const|let) (\w+)", text, re.M)
    lists = ",".join(re.findall(r"^export \{([^}]*)\}", text, re.M)).split(",")
    return {*names, *(one.split(" as ")[-1].strip() for one in lists)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(STATIC).as_posix())
def test_imported_names_exist(path: Path) -> None:
    for names, source in _IMPORT.findall(path.read_text()):
        target = (path.parent / source).resolve()
        assert target.is_file(), f"{source} does not exist"
        if target.parent.name != "vendor":
            wanted = {one.split(" as ")[0].strip() for one in names.split(",")} - {""}
            assert wanted <= exports(target), f"{source} does not export all of {wanted}"
