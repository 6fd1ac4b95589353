"""Examples of each tool format, which are data: a file of `formats` for each, of these keys.

    one, two     a call of get_weather, and it with one of add, as the model's template writes them
    more         further texts: `text`, the `content` that is left, `reasoning` if the format has
                 it, `calls` of name and arguments
    texts        texts without a call
    named        true if a call of an unknown tool is text
    templates    chat templates, or the texts in them that matter
    published    names of templates of its models, see test_published_templates.py
    single       true if those templates write the first call of a message alone
    detected     names of those that cannot show calls, or not to the router

The format `arrows` is that of the page on adding one. Every format is of the tools of `TOOLS`;
`PARIS` and `ADD` are the arguments of the two calls.
"""

import tomllib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.parsers.tool_call_formats import named
from signalbox_router.prompt.chat.conversation import Tool
from tests.docs.blocks import ROOT, blocks

Calls = list[tuple[str, Any]]
"""Name and arguments of each, whole; arguments are the JSON value."""


def _tool(name: str, **properties: Any) -> Tool:
    required = list(properties)[:1]
    schema = {"type": "object", "properties": properties, "required": required}
    return Tool(name, "", schema, strict=True)


TOOLS = (
    _tool("get_weather", city={"type": "string"}, unit={"enum": ["C", "F"]}),
    _tool(
        "add",
        a={"type": "number"},
        list={"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 3},
        note={"type": "string", "maxLength": 8},
        is_exact={"type": "boolean"},
        options={"type": "object", "properties": {"b": {"type": "string", "pattern": "^[a-z]+$"}}},
        any={},
    ),
    Tool("now", strict=True),
)
PARIS = {"city": "Paris"}
ADD = {"a": 1, "list": [2, None], "note": 'a "b"\n}', "is_exact": True, "options": {"b": "c"}}


class Example(NamedTuple):
    """A text, what is left of it, and its calls."""

    text: str
    content: str
    calls: Calls
    reasoning: str = ""


class Examples(NamedTuple):
    """The file of one format."""

    format_: ToolCallFormat
    one: str
    two: str
    more: list[Example]
    texts: list[str]
    named: bool
    templates: list[str]
    published: list[str]
    single: bool
    detected: list[str]

    def all(self) -> list[Example]:
        paris, add = ("get_weather", PARIS), ("add", ADD)
        unknown = self.one.replace("get_weather", "unheard_of")
        return [
            Example(self.one, "", [paris]),
            Example(self.two, "", [paris, add]),
            Example(f"Let me look.\n{self.two}", "Let me look.\n", [paris, add]),
            Example(unknown, unknown, []) if self.named else Example(
                unknown, "", [("unheard_of", PARIS)]
            ),
            *self.more,
            *(Example(text, text, []) for text in self.texts),
        ]  # fmt: skip


_FOLDER = Path(__file__).with_name("formats")
OF_PAGE = "arrows"
TRIED = sorted(path.stem for path in _FOLDER.glob("*.toml"))
NAMES = [name for name in TRIED if name != OF_PAGE]
"""The formats of this package."""


def _format(name: str) -> ToolCallFormat:
    if name != OF_PAGE:
        return named(name)
    scope: dict[str, Any] = {}
    for block in blocks(ROOT / "docs/how_to/add_a_tool_format.md"):
        if block.language == "python":
            exec(block.text, scope)
    format_ = scope["ARROWS"]
    assert isinstance(format_, ToolCallFormat)
    return format_


@cache
def examples(name: str) -> Examples:
    file = tomllib.loads((_FOLDER / f"{name}.toml").read_text())
    more = [
        Example(
            one["text"],
            one.get("content", ""),
            [(name, call) for name, call in one["calls"]],
            one.get("reasoning", ""),
        )
        for one in file.get("more", ())
    ]
    return Examples(
        _format(name),
        file["one"],
        file["two"],
        more,
        file.get("texts", []),
        file.get("named", False),
        file.get("templates", []),
        file.get("published", []),
        file.get("single", False),
        file.get("detected", []),
    )
