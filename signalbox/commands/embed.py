"""`signalbox embed`: prints the served model's vectors of texts as lines of JSON."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from typing import Any

from signalbox.client.connection import connection, router_client
from signalbox.client.piped_input import read_input
from signalbox.client.router_flags import add_model_flag, add_router_flags
from signalbox.client.terminal_answer import explained

TEXTS_OF_A_CALL = 64
"""Texts of one call: the first vectors are printed while the others are computed."""
EXAMPLES = """\
examples
  signalbox embed "The capital of France is Paris"
  signalbox embed --dimensions 256 < texts.txt > vectors.jsonl
  signalbox embed --prompt-name query "Where is the Eiffel tower?"
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="*",
        help="a text; each has a line with its vector (default: the lines of standard input)",
    )
    parser.add_argument(
        "--dimensions", type=int, metavar="N", help="first N elements, if the model declares them"
    )
    parser.add_argument(
        "--prompt-name",
        metavar="NAME",
        help="name of the model's prompt before each text (default: the model's default prompt)",
    )
    parser.add_argument(
        "--truncate", action="store_true", help="cut texts that are too long, instead of an error"
    )
    add_model_flag(parser)
    add_router_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Prints a line for each text."""
    asyncio.run(_run(options, options["text"] or _lines()))


def _lines() -> list[str]:
    return [text for text in read_input().split("\n") if text]


async def _run(options: dict[str, Any], texts: Sequence[str]) -> None:
    async with router_client(options["router"], connection(options)) as client:
        with explained(client.address):
            for start in range(0, len(texts), TEXTS_OF_A_CALL):
                vectors = await client.embed(
                    texts[start : start + TEXTS_OF_A_CALL],
                    dimensions=options["dimensions"],
                    prompt_name=options["prompt_name"],
                    truncate=options["truncate"],
                    model=options["model"],
                    timeout_s=None,
                )
                for vector in vectors:
                    print(json.dumps(vector), flush=True)
