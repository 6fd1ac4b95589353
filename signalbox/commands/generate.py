"""`signalbox generate`: prints text on standard output, and a summary on standard error."""

import argparse
import asyncio
from typing import Any

from signalbox.client.connection import connection, router_client
from signalbox.client.foreign_flags import TEXT_FLAGS, add_text_flags, text_of
from signalbox.client.piped_input import read_input, with_piped
from signalbox.client.router_flags import (
    add_model_flag,
    add_router_flags,
    add_sampling_flags,
    request_options,
)
from signalbox.client.terminal_answer import show

EXAMPLES = """\
examples
  signalbox generate "Once upon a time" --max-tokens 64
  signalbox generate "The capital of France is" --temperature 0 --json
  signalbox generate "A name:" -n 3 --stop $'\\n'
  cat article.txt | signalbox generate --router gpu1:50051 --max-tokens 200
  signalbox generate "A city as JSON: " --json-schema city.json
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        help="prompt, after what is piped (default: standard input)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_sampling_flags(parser)
    add_model_flag(parser)
    add_router_flags(parser)
    add_text_flags(parser, *TEXT_FLAGS)


def run(options: dict[str, Any]) -> None:
    """Prints the continuation of a prompt."""
    given = text_of(options, "prompt")
    asyncio.run(_generate(options, read_input() if given is None else with_piped(given) or ""))


async def _generate(options: dict[str, Any], prompt: str) -> None:
    asked = request_options(options)
    async with router_client(options["router"], connection(options)) as client:
        stream = client.stream_generate(prompt, model=options["model"], **asked)
        await show(stream, address=client.address, as_json=options["json"])
