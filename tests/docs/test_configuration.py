"""The tables of the docs list each setting and each flag of vLLM as it is declared."""

from pathlib import Path

import pytest

from signalbox.settings.reference import PAGES, page
from tests.docs.blocks import ROOT


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_a_page_has_the_tables_as_they_are_declared(path: Path) -> None:
    text = (ROOT / path).read_text(encoding="utf-8")
    assert text == page(path, text), "make docs writes the tables again"
