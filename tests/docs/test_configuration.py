"""The tables of the docs list each setting and each flag of vLLM as it is declared."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import cli_reference, foreign_fields_reference
from signalbox.settings.flags.reference import PAGES, page
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_has_the_tables_as_they_are_declared(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == page(path, text), "make docs writes the tables again"


@pytest.mark.parametrize("reference", [cli_reference, foreign_fields_reference])
def test_a_generated_page_is_what_the_code_says(reference: Any) -> None:
    text = reference.PAGE.read_text(encoding="utf-8")
    assert text == reference.text(), "make docs writes the page again"


def test_a_row_about_a_flag_has_two_cells() -> None:
    """Also where a flag takes one of several words, with bars between them."""
    rows = [line for line in cli_reference.text().splitlines() if line.startswith("|")]
    assert {len(re.split(r"(?<!\\)\|", row)) for row in rows} == {4}


def test_the_site_lists_each_page_once() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    sections = [one.values() if isinstance(one, dict) else [[one]] for one in config["nav"]]
    listed = [page for section in sections for pages in section for page in pages]
    there = [str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(there)
