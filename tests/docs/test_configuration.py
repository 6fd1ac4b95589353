"""docs/configuration.md lists each setting as it is declared."""

from signalbox.settings.reference import PAGE, page
from tests.docs.blocks import ROOT


def test_the_page_has_the_settings_as_they_are() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == page(text), "make docs writes the tables again"
