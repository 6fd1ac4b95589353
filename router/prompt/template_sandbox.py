"""Sandboxed Jinja with the extensions of Hugging Face's chat templates; also a process.

It has the same whitespace rules, `raise_exception`, `strftime_now`, `tojson`, loop controls and the
`generation` block. The sandbox protects our objects, but not our time and memory; so this file, run
as a short-lived process with limits that the kernel enforces, renders a template from a client. It
imports little of ours, to start fast and isolated.
"""

import json
import resource
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser

if __name__ == "__main__":  # the isolated process does not have the parent's module path
    _folders = Path(__file__).resolve().parents
    sys.path.insert(0, str(next(one for one in _folders if not (one / "__init__.py").exists())))

from router.prompt.provenance import (
    CLIENT,
    MODEL,
    TEMPLATE,
    Text,
    concat,
    marked,
    writers_of,
    written_by,
)
from router.prompt.provenance_jinja import ProvenanceEnvironment

CPU_LIMIT_S = 2
MEMORY_LIMIT_BYTES = 512 << 20


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


def _limit_this_process() -> None:
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_LIMIT_S),
        (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def job_of(
    source: str,
    variables: Mapping[str, Any],
    *,
    special_tokens: Mapping[str, str],
    max_bytes: int,
) -> dict[str, Any]:
    """Returns the job for a process of this file that renders a template."""
    texts = [_texts(message) for message in variables["messages"]]
    return {
        "source": source,
        "variables": variables,
        "special_tokens": special_tokens,
        "max_bytes": max_bytes,
        "writers": [
            [writers_of(text).decode() if isinstance(text, Text) else None for text in some]
            for some in texts
        ],
    }


def rendered(answer: Mapping[str, str]) -> Text:
    """Returns the text that the process has rendered."""
    return Text(answer["text"], answer["writers"].encode())


def _texts(message: Mapping[str, Any]) -> list[str]:
    content = message["content"]
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _restore_writers(message: dict[str, Any], writers: Sequence[str | None]) -> None:
    texts = [
        text if one is None else Text(text, one.encode())
        for text, one in zip(_texts(message), writers, strict=True)
    ]
    if isinstance(message["content"], str):
        (message["content"],) = texts
    else:
        message["content"] = [{"type": "text", "text": text} for text in texts]


def _answer(job: Mapping[str, Any]) -> dict[str, str]:
    try:
        template = ENVIRONMENT.from_string(job["source"])
        variables, max_bytes = job["variables"], job["max_bytes"]
        for message, writers in zip(variables["messages"], job["writers"], strict=True):
            _restore_writers(message, writers)
        special_tokens = job["special_tokens"]
        text = render(template, variables, special_tokens=special_tokens, max_bytes=max_bytes)
        return {"text": text, "writers": writers_of(text).decode()}
    except TooLong:
        return {"error": f"it renders more than {job['max_bytes']} bytes"}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_LIMIT_BYTES >> 20} MiB"}
    except Exception as error:  # a template may raise any exception
        return {"error": str(error)[:1000] or type(error).__name__}


if __name__ == "__main__":
    _limit_this_process()
    sys.stdout.write(json.dumps(_answer(json.load(sys.stdin))))
