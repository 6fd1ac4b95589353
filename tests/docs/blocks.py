"""Reads the fenced blocks of a page of documentation.

The info string of a block is its language and, behind that, at most one mark:

| info string | meaning |
|---|---|
| `sh` | commands that must succeed, in order, in the page's folder |
| `sh service` | a command that serves until the end of the page |
| `sh needs=WHAT` | commands that no CI machine can run; their flags are checked |
| `python` | a program that must succeed |
| `python part` | part of a program; it must compile, and a test beside the code runs its like |
| `json`, `yaml`, `toml` | data, which must parse |
| `text` | output, or a drawing |
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

LANGUAGES = ("sh", "python", "json", "yaml", "toml", "text")
NEEDS = ("clone", "docker", "kubernetes", "hosts", "toolchains", "gateway", "gpu", "internet")
"""What a CI machine lacks, or does elsewhere: `make demo` and `make test` are its own commands."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    page: Path
    line: int
    language: str
    mark: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        """Whether the block is executed in a page's session."""
        return self.language in ("sh", "python") and not self.mark.startswith(("needs=", "part"))


def pages() -> list[Path]:
    """Returns the README and every page below docs/, in order of their names."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def blocks(page: Path) -> Iterator[Block]:
    """Yields the blocks of a page. Raises ValueError if one has no end."""
    begin, info, body = 0, "", []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        fence = line.strip()
        if not begin and fence.startswith("```"):
            begin, info, body = number, fence[3:], []
        elif begin and fence == "```":
            language, _, mark = info.partition(" ")
            yield Block(page, begin, language, mark, "\n".join(body) + "\n")
            begin = 0
        elif begin:
            body.append(line)
    if begin:
        raise ValueError(f"{page}:{begin}: the block has no end")
