"""The version of the tree is one that a tag can carry."""

import re

from signalbox.version import VERSION
from tests.docs.blocks import ROOT
from tests.protos.corpus import FOLDER


def test_the_changelog_begins_with_the_version_of_the_tree() -> None:
    headings = re.findall(
        r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)
    assert headings[0] == VERSION


def test_the_version_is_not_older_than_what_has_been_released() -> None:
    released = [path.stem for path in FOLDER.glob("*.jsonl")]
    assert released
    for one in released:
        assert [*map(int, one.split("."))] <= [*map(int, VERSION.split("."))]
