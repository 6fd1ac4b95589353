"""Formats of installed packages, and the choice of a format."""

from importlib.metadata import EntryPoint

import pytest
from pydantic import ValidationError

from signalbox_router.config import RouterConfig
from signalbox_router.parsers import tool_call_formats
from signalbox_router.parsers.tool_call_formats import GROUP, choose, choose_whole, detect
from tests.router.fakes import make_tokenizer
from tests.router.parsers.test_formats import tokenizer_of

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


def test_what_a_package_replaces_is_not_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mistral", "openai", "json"):
        install(monkeypatch, name, f"{MODULE}:OF_PACKAGE")
    for has_markers in (False, True):
        vocabulary, _ = tokenizer_of("mistral", has_markers=has_markers)
        for template in ("[TOOL_CALLS]", "<|start|><|channel|><|call|>", ""):
            assert detect(template, vocabulary) is OF_PACKAGE
            assert choose_whole("auto", template, vocabulary) is None


def test_a_token_tells_the_format_where_the_template_does_not() -> None:
    for name in ("hermes", "mistral", "llama3_json", "seed_oss"):
        vocabulary, _ = tokenizer_of(name, has_markers=True)
        assert detect("{{ tools }}", vocabulary) is tool_call_formats.named(name)
        assert detect("[TOOL_CALLS]{{ tools }}", vocabulary) is tool_call_formats.named("mistral")


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
    install(monkeypatch, "json", value)
    for setting in ("json", "auto"):
        with pytest.raises(ValidationError) as caught:
            RouterConfig(tool_call_parser=setting)
        assert f"entry point 'json' of {GROUP}: {value} {reason}" in str(caught.value)
    assert RouterConfig(tool_call_parser="hermes").tool_call_parser == "hermes"
