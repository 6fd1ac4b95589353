"""Links of the documentation lead somewhere, and what it names of the tree is there.

No network is asked: only links within the repository are checked.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, pages
from tests.test_imports import FOLDERS, PYPROJECT

DOCUMENTS = [
    *(
        ROOT / name
        for name in (
            "ARCHITECTURE.md",
            "CONTRIBUTING.md",
            "SECURITY.md",
            "THREAT_MODEL.md",
            "CHANGELOG.md",
        )
    ),
    *pages(),
]
TOPS = "|".join(
    (*FOLDERS, "protos|contract|rpc|router|scheduler_svc|gpu_worker|kernels|clients|tests|deploy")
)
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PATH = re.compile(rf"`((?:{TOPS})/[\w./]*(?:/|\.\w+))`")
_CODE = re.compile(r"`([^`\n]+)`")
_NAME = re.compile(r"(?<![\w.])_*[a-z][a-z0-9]*_\w+(?![\w*])")
_OF_OTHERS = {"chunk_cache", "loop_unroll_factor", "size_bytes"}
"""Names of other projects in pages for developers."""
_ON_THE_PATH = re.compile(r"(?:PYTHONPATH|FOLDERS)=.*clients/python.*")
_IN_A_FILE = re.compile(r"((?:`test_\w+`(?:,|,? and|,? above all|\s)*)+)\sin\s`(tests/[\w/]+\.py)`")
_TEST = re.compile(r"`(test_\w+)`")


def prose(page: Path) -> str:
    """Returns a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """Returns the anchors of a page's headings, as GitHub and MkDocs make them."""
    found: set[str] = set()
    for heading in _HEADING.findall(prose(page)):
        words = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        found.add(re.sub(r"[ -]+", "-", words).strip("-"))
    return frozenset(found)


@cache
def names_of_tests() -> frozenset[str]:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    return frozenset(name for text in sources for name in re.findall(r"def (test_\w+)", text))


@cache
def words_of_sources() -> frozenset[str]:
    kinds = ("*.py", "*.proto", "*.cpp", "*.h")
    places = {folder.relative_to(ROOT).parts[0] for folder in FOLDERS.values()}
    places |= {"benchmarks", "scripts"}
    files = [path for place in places for kind in kinds for path in (ROOT / place).rglob(kind)]
    names = [*ROOT.glob("*"), *(ROOT / "tests").rglob("*.*"), *files]
    texts = [*map(str, names), *(path.read_text("utf-8", "replace") for path in files)]
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def place_of(name: str) -> Path:
    """Returns what a page names by its path, or as a part of an import package."""
    top = name.partition("/")[0]
    return (FOLDERS[top].parent if top in FOLDERS else ROOT) / name


def faults(page: Path) -> Iterator[str]:
    """Yields what a page links to or names and the tree does not have."""
    text = prose(page)
    for link in _LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{link} leads to nothing"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: {target.name} has no such heading"
    yield from (
        f"{name} is not there" for name in _PATH.findall(text) if not place_of(name).exists()
    )
    yield from (
        f"{name} is no test" for name in _TEST.findall(text) if name not in names_of_tests()
    )
    for names, file in _IN_A_FILE.findall(text):
        source = (ROOT / file).read_text(encoding="utf-8")
        yield from (
            f"{name} is not in {file}"
            for name in _TEST.findall(names)
            if f"def {name}(" not in source
        )


def is_of_developers(page: Path) -> bool:
    return page.parent.name == "explanation" or page.name in ("ARCHITECTURE.md", "THREAT_MODEL.md")


@pytest.mark.parametrize(
    "page", [page for page in DOCUMENTS if is_of_developers(page)], ids=lambda page: page.name
)
def test_names_in_pages_for_developers_are_in_the_sources(page: Path) -> None:
    names = {name for code in _CODE.findall(prose(page)) for name in _NAME.findall(code)}
    inside = {name.removeprefix("signalbox_").removesuffix("_total") for name in names}
    missing = inside - words_of_sources() - names_of_tests() - _OF_OTHERS
    assert not missing


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_and_names_is_there(page: Path) -> None:
    assert not list(faults(page))


def test_each_page_is_linked_from_the_first_page_or_from_the_architecture() -> None:
    linked = set()
    for page in (ROOT / "docs" / "index.md", ROOT / "ARCHITECTURE.md"):
        paths = (link.partition("#")[0] for link in _LINK.findall(prose(page)))
        linked |= {(page.parent / path).resolve() for path in paths}
    ours = {page for page in pages() if page.parent != ROOT}
    assert not ours - linked - {ROOT / "docs" / "index.md"}


def test_what_puts_the_packages_on_the_path_of_python_names_all_their_folders() -> None:
    where = PYPROJECT["tool"]["setuptools"]["packages"]["find"]["where"]
    needed = set(where) - {".", "old_names"}
    texts = (path.read_text() for path in [*DOCUMENTS, ROOT / "scripts" / "gpu_first_minutes.sh"])
    lists = [line for text in texts for line in _ON_THE_PATH.findall(text)]
    assert len(lists) >= 3
    for line in lists:
        assert needed <= set(re.findall(r"[\w/]+", line)), line


def test_a_link_a_path_or_a_test_that_is_not_there_is_told(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](#here) [b](#there) [c](gone.md) `signalbox_router/gone.py` `test_gone`\n"
        f"and `{test_what_a_page_links_to_and_names_is_there.__name__}` in `tests/docs/blocks.py`\n"
    )
    assert len(list(faults(page))) == 5
