"""Jinja as Hugging Face's chat templates are written for it, sandboxed; also a process of its own.

The same whitespace rules, `raise_exception`, `strftime_now`, `tojson`, loop controls and the
`generation` block. The sandbox keeps a template from our objects, but not from our time and memory;
so a template that a client has sent is rendered by this file as a short-lived process, with limits
that the kernel enforces. Imports nothing of ours, to start fast and isolated.
"""

import json
import resource
import sys
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_LIMIT_S = 2
MEMORY_LIMIT_BYTES = 512 << 20


class TooLong(Exception):
    """The rendered text is longer than it may be."""


class _GenerationBlock(Extension):
    """Accepts `{% generation %}`, which marks the assistant's text for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(template: jinja2.Template, variables: Mapping[str, Any], *, max_bytes: int) -> str:
    """Raises TooLong, or whatever the template does."""
    pieces: list[str] = []
    num_bytes = 0
    for piece in template.generate(variables):  # a name may be that of a parameter
        pieces.append(piece)
        num_bytes += len(piece.encode())
        if num_bytes > max_bytes:
            raise TooLong
    return "".join(pieces)


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


ENVIRONMENT = _make_environment()


def _limit_this_process() -> None:
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_LIMIT_S),
        (resource.RLIMIT_AS, MEMORY_LIMIT_BYTES),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (limit, limit))


def _answer(job: Mapping[str, Any]) -> dict[str, str]:
    try:
        template = ENVIRONMENT.from_string(job["source"])
        return {"text": render(template, job["variables"], max_bytes=job["max_bytes"])}
    except TooLong:
        return {"error": f"it renders more than {job['max_bytes']} bytes"}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY_LIMIT_BYTES >> 20} MiB"}
    except Exception as error:  # a template may raise whatever Python does
        return {"error": str(error)[:1000] or type(error).__name__}


if __name__ == "__main__":
    _limit_this_process()
    sys.stdout.write(json.dumps(_answer(json.load(sys.stdin))))
