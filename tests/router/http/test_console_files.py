"""What the console's files may be: small, formatted, and without a way out of its policy."""

import re
from pathlib import Path

import pytest

from tests.test_imports import ROOT

STATIC = ROOT / "router" / "signalbox_router" / "console" / "static"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
LOADED = [path for path in FILES if path.suffix in {".html", ".js", ".css", ".svg"}]
OWN = [path for path in FILES if STATIC / "vendor" not in path.parents]
MOST_LINES = 4_461
"""Lines of our own, as prettier prints them."""
MOST_BYTES = 300_000
"""Bytes of all files, those of others included."""

MARKUP = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write"
    r"|DOMParser|createContextualFragment|srcdoc|\beval\(|new Function|javascript:",
)
"""Ways by which a text becomes markup or a program."""
INLINE = re.compile(r"<style|<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", re.IGNORECASE)
"""What the policy refuses in a page."""
ADDRESS = re.compile(r"""(?:https?|wss?):?//[^\s"'`)>]+|["'(]//\w""")
NO_REQUEST = re.compile(r"http://www\.w3\.org/[\w/]+$|https://github\.com/markedjs/marked\.$")
"""Names of XML, and where a library asks to be told of its faults."""


def _named(path: Path) -> str:
    return path.relative_to(STATIC).as_posix()


def test_there_are_few_lines_of_our_own() -> None:
    lines = {_named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in OWN}
    assert 0 < sum(lines.values()) <= MOST_LINES, lines


def test_all_files_together_are_small() -> None:
    sizes = {_named(path): path.stat().st_size for path in FILES}
    assert 0 < sum(sizes.values()) < MOST_BYTES, sizes


@pytest.mark.parametrize("path", OWN, ids=_named)
def test_no_text_becomes_markup(path: Path) -> None:
    assert not MARKUP.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", [one for one in OWN if one.suffix == ".html"], ids=_named)
def test_a_page_has_no_inline_script_or_style(path: Path) -> None:
    assert not INLINE.findall(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", LOADED, ids=_named)
def test_no_file_names_another_host(path: Path) -> None:
    """But for the comment above a library that says where it comes from."""
    text = re.sub(r"/\*.*?\*/", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    named = [one for one in ADDRESS.findall(text) if not NO_REQUEST.match(one)]
    assert not named


@pytest.mark.parametrize("path", LOADED, ids=_named)
def test_links_are_relative(path: Path) -> None:
    """So that a proxy may put a prefix before all paths."""
    text = path.read_text(encoding="utf-8")
    assert not re.findall(
        r"""(?:src|href)="/|(?:from|import)\s*\(?["']/|url\(["']?/|fetch\(["'`]/""", text
    )
