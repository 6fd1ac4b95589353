"""Sandboxed Jinja with the extensions of Hugging Face's chat templates.

It has the same whitespace rules, `raise_exception`, `strftime_now`, `tojson`, loop controls and the
`generation` block. The sandbox protects objects, but not time and memory; so `template_process`
alone renders with it, within limits that the kernel enforces.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

from signalbox_router.prompt.chat.provenance import (
    CLIENT,
    MODEL,
    TEMPLATE,
    Text,
    concat,
    marked,
    written_by,
)
from signalbox_router.prompt.chat.provenance_jinja import ProvenanceEnvironment


class TooLong(Exception):
    """The rendered text is longer than allowed."""


class _GenerationBlock(Extension):
    """Accepts `{% generation %}`, which marks the assistant's text for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(
    template: jinja2.Template,
    variables: Mapping[str, Any],
    *,
    special_tokens: Mapping[str, str],
    max_bytes: int,
) -> Text:
    """Returns the text with the writer of each character. Raises TooLong and the template's
    exceptions.

    Args:
        special_tokens: variables that count as the template's own text.
    """
    tokens = {name: written_by(TEMPLATE, token) for name, token in special_tokens.items()}
    given = {**tokens, **variables, "messages": list(map(_written, variables["messages"]))}
    pieces: list[str] = []
    num_bytes = 0
    for piece in template.generate(given):  # a variable may have the name of a parameter
        pieces.append(piece)
        num_bytes += len(piece.encode())
        if num_bytes > max_bytes:
            raise TooLong
    return concat(pieces)


def _written(message: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a message whose strings have their writers.

    The role is one of a few known words. Parts of the text may have been written by this server:
    then it is a `Text` already. Other variables are plain, so they count as the client's.
    """
    writer = MODEL if message["role"] == "assistant" else CLIENT
    texts = {name: marked(value, writer) for name, value in message.items() if name != "name"}
    return {**message, **texts, "role": written_by(TEMPLATE, message["role"])}


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _make_environment() -> ProvenanceEnvironment:
    environment = ProvenanceEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = _make_environment()
