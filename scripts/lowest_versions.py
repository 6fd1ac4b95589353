"""Prints the lowest versions that pyproject.toml allows, as exact requirements for pip.

python scripts/lowest_versions.py [EXTRA ...] > lowest.txt
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def main(extras: Iterable[str]) -> None:
    project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
    print("\n".join(lowest(requirements(project, extras))))


def requirements(project: dict[str, Any], extras: Iterable[str]) -> list[str]:
    """Returns the dependencies of a project and of extras, those that they include as well."""
    found = list(project["dependencies"])
    for extra in extras:
        for requirement in project["optional-dependencies"][extra]:
            included = re.match(rf"{project['name']}\[(.*)\]", requirement)
            if included is None:
                found.append(requirement)
            else:
                found += requirements(project, included[1].split(","))
    return list(dict.fromkeys(found))


def lowest(requirements: Iterable[str]) -> Iterator[str]:
    """Yields those that have a lower bound, pinned to it."""
    for requirement in requirements:
        if found := re.match(r"([\w.-]+)(?:\[.*\])?(?:>=|==)([\w.]+)", requirement):
            yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    main(sys.argv[1:])
