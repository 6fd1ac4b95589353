"""Reads from a chat template's source how it uses tools and text parts."""

import enum
import re
from typing import NamedTuple

import jinja2
from jinja2 import nodes

from signalbox_router.prompt.chat import template_sandbox

_DOCUMENT = re.compile(r"\bdocument\b")
"""Role of a message in a template for pairs."""


class ContentForm(enum.Enum):
    """Form in which a template gets a message's content."""

    JOINED = enum.auto()
    """One text; several parts are joined by newlines."""
    PARTS = enum.auto()
    """A list of {"type": "text", "text": ...} for several parts, a text for one part."""
    LIST = enum.auto()
    """Always a list, for templates that accept no text."""


class TemplateFacts(NamedTuple):
    """Properties of one chat template."""

    takes_tools: bool = False
    """True if the template reads `tools`."""
    takes_tool_calls: bool = False
    """True if the template reads the `tool_calls` of a message."""
    content_form: ContentForm = ContentForm.JOINED


def facts_of(source: str) -> TemplateFacts:
    """Returns the facts; the defaults if the source is invalid, because rendering reports the
    error.

    Parsing takes 0.3 s for a large template, so that `template_process` alone calls it.
    """
    try:
        tree = template_sandbox.ENVIRONMENT.parse(source)
        names = {node.name for node in tree.find_all(nodes.Name) if node.ctx == "load"}
        return TemplateFacts("tools" in names, "tool_calls" in source, _content_form(tree))
    except (jinja2.TemplateSyntaxError, RecursionError):  # a long sum is a deep tree
        return TemplateFacts()


def is_for_pairs(source: str) -> bool:
    """Returns whether a template renders a query and a document for a reranker."""
    return _DOCUMENT.search(source) is not None


def _content_form(tree: nodes.Template) -> ContentForm:
    aliases = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, aliases):
            aliases.add(assignment.target.name)
    if not any(_is_content(loop.iter, aliases) for loop in tree.find_all(nodes.For)):
        return ContentForm.JOINED
    knows_texts = any(test.name == "string" for test in tree.find_all(nodes.Test))
    return ContentForm.PARTS if knows_texts else ContentForm.LIST


def _is_content(node: nodes.Node, aliases: set[str]) -> bool:
    match node:
        case nodes.Getattr(attr="content") | nodes.Getitem(arg=nodes.Const(value="content")):
            return True
        case nodes.Name(name=name):
            return name in aliases
    return False
