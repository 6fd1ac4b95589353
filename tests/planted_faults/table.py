"""Faults of the history: what goes wrong, how each is planted today, and the test that catches it.

The faults are in `faults.toml`. `what` says in behaviour what goes wrong, so that the fault can be
planted again after the code has moved; the commit that moves the code moves the edits, too.
"""

import ast
import itertools
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = Path(__file__).with_name("faults.toml")

_stamps = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Edit:
    """Whole lines of a file, which stand there once, and what they become."""

    file: str
    text: str
    becomes: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault."""

    name: str
    what: str
    mended: str
    """Subject of the commit that mended it, or that found it."""
    test: str
    """Node id of the test that fails with it."""
    edits: tuple[Edit, ...]

    def sources(self, root: Path) -> dict[Path, str]:
        """Returns each file of a checkout that the fault changes, as it is with the fault.

        Raises ValueError if the fault cannot be planted any more.
        """
        before = {edit.file: (root / edit.file).read_text("utf-8") for edit in self.edits}
        after = dict(before)
        for edit in self.edits:
            if (count := before[edit.file].count(edit.text)) != 1:
                raise ValueError(f"its text stands {count} times in {edit.file}, and not once")
            after[edit.file] = after[edit.file].replace(edit.text, edit.becomes)
        return {root / file: source for file, source in after.items()}

    def find_obstacle(self, root: Path) -> str | None:
        """Says why the fault cannot be planted, or has no test; None if all is there."""
        try:
            for path, source in self.sources(root).items():
                ast.parse(source, path)
        except (OSError, SyntaxError, ValueError) as error:
            return str(error)
        file, _, function = self.test.partition("::")
        defined = re.compile(rf"^(async )?def {re.escape(function.partition('[')[0])}\(", re.M)
        path = root / file
        if not path.is_file() or defined.search(path.read_text("utf-8")) is None:
            return f"there is no test {self.test}"
        return None

    @contextmanager
    def planted(self, root: Path) -> Iterator[None]:
        """Changes the files of a checkout within the block."""
        sources = self.sources(root)
        before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in sources}
        try:
            for path, source in sources.items():
                path.write_text(source, "utf-8")
                # Compiled code is found by time in seconds and size, which faults may have alike.
                seconds = next(_stamps)
                os.utime(path, (seconds, seconds))
            yield
        finally:
            for path, (content, time_ns) in before.items():
                path.write_bytes(content)
                os.utime(path, ns=(time_ns, time_ns))


def read_faults() -> list[Fault]:
    """Returns all faults, in the order of the table."""
    entries = tomllib.loads(TABLE.read_text("utf-8"))
    return [
        Fault(name=name, edits=tuple(Edit(**edit) for edit in entry.pop("edits")), **entry)
        for name, entry in entries.items()
    ]
