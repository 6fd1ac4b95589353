"""Formats of installed packages, and the choice of a format."""

from importlib.metadata import EntryPoint

import pytest

from signalbox_router.parsers import tool_call_formats
from signalbox_router.parsers.tool_call_formats import GROUP, FormatError, choose, detect
from tests.router.fakes import make_tokenizer

MODULE = "tests.router.parsers.test_tool_call_formats"
OF_PACKAGE = tool_call_formats.named("hermes")


def install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = EntryPoint(name, value, GROUP)
    monkeypatch.setitem(tool_call_formats._OF_PACKAGES, name, entry)


def test_a_package_adds_a_format_and_replaces_one(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = make_tokenizer().vocabulary
    assert choose("json", "", vocabulary) is tool_call_formats.named("json")
    for name in ("json", "mine"):
        install(monkeypatch, name, f"{MODULE}:OF_PACKAGE")
        assert choose(name, "", vocabulary) is OF_PACKAGE
    assert detect("<tool_call>[TOOL_CALLS]", vocabulary) is OF_PACKAGE  # asked before ours
    assert choose("none", "<tool_call>", vocabulary) is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:X", "cannot be imported (ModuleNotFoundError: No module named"),
        (f"{MODULE}:MODULE", "is no ToolCallFormat"),
    ],
)
def test_a_format_that_cannot_be_used_is_named(
    monkeypatch: pytest.MonkeyPatch, value: str, reason: str
) -> None:
    install(monkeypatch, "mine", value)
    with pytest.raises(FormatError) as caught:
        choose("mine", "", make_tokenizer().vocabulary)
    assert f"entry point 'mine' of {GROUP}: {value} {reason}" in str(caught.value)
