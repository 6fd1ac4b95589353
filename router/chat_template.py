"""Renders conversations with a model's Jinja chat template, sandboxed.

The environment is the one that Hugging Face templates are written for: the same whitespace rules,
`raise_exception`, `strftime_now`, `tojson`, loop controls and the `generation` block.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from rpc.errors import InvalidArgument


class Message(NamedTuple):
    """One turn of a conversation."""

    role: str
    content: str


class _GenerationBlock(Extension):
    """Accepts `{% generation %}`, which marks the assistant's text for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template with the model's special tokens."""

    def __init__(self, source: str, *, special_tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        self._template = _ENVIRONMENT.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool, max_bytes: int
    ) -> str:
        """Returns the prompt. Raises InvalidArgument if the template refuses the conversation."""
        variables = {
            **self._special_tokens,
            "messages": [message._asdict() for message in messages],
            "add_generation_prompt": add_generation_prompt,
            "tools": None,
            "documents": None,
        }
        try:
            return self._render(variables, max_bytes)
        except InvalidArgument:
            raise
        except Exception as error:  # a template may raise whatever Python does
            raise InvalidArgument(
                "messages", _count(messages), f"what the model's chat template accepts ({error})"
            ) from error

    def _render(self, variables: Mapping[str, Any], max_bytes: int) -> str:
        pieces: list[str] = []
        num_bytes = 0
        for piece in self._template.generate(**variables):
            pieces.append(piece)
            num_bytes += len(piece.encode())
            if num_bytes > max_bytes:
                count = _count(variables["messages"])
                raise InvalidArgument("messages", count, f"at most {max_bytes} bytes when rendered")
        return "".join(pieces)


def _count(messages: Sequence[object]) -> str:
    return f"a conversation of {len(messages)} messages"


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format_: str) -> str:
    return datetime.now().strftime(format_)


def _to_json(
    value: object,
    *,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


_ENVIRONMENT = _make_environment()
