"""The tables of the docs list each setting and each flag of vLLM as it is declared."""

import re
from pathlib import Path

import pytest

from signalbox.settings.reference import PAGES, page
from tests.docs.blocks import ROOT


def test_the_table_of_the_readme_has_each_page_once() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    linked = re.findall(r"\((docs/\w+\.md)\)", "\n".join(one for one in lines if one[:1] == "|"))
    assert sorted(linked) == sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_has_the_tables_as_they_are_declared(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == page(path, text), "make docs writes the tables again"
