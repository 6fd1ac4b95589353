"""`signalbox tokenize`: converts text to the served model's tokens, and token ids to text."""

import argparse
import asyncio
import json
from typing import Any

from rich.table import Table
from rich.text import Text

from signalbox.client.connection import connection, router_client
from signalbox.client.piped_input import read_input
from signalbox.client.router_flags import add_model_flag, add_router_flags
from signalbox.client.tables import show
from signalbox.client.terminal_answer import explained
from signalbox_client import Token
from signalbox_contract.wording import counted

EXAMPLES = """\
examples
  signalbox tokenize "The capital of France is"
  signalbox tokenize --json < prompt.txt | jq .count
  signalbox tokenize --no-special-tokens "Hello"
  signalbox tokenize --decode 1 504 3575
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="*",
        help="text, or token ids with --decode (default: standard input)",
    )
    parser.add_argument("--decode", action="store_true", help="convert token ids to text")
    parser.add_argument(
        "--no-special-tokens",
        action="store_true",
        help="add no special tokens; with --decode, leave them out of the text",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_model_flag(parser)
    add_router_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Prints tokens or text."""
    asyncio.run(_run(options, " ".join(options["text"]) if options["text"] else read_input()))


async def _run(options: dict[str, Any], given: str) -> None:
    special, model = not options["no_special_tokens"], options["model"]
    async with router_client(options["router"], connection(options)) as client:
        with explained(client.address):
            if options["decode"]:
                text = await client.detokenize(
                    _ids(given), skip_special_tokens=not special, model=model
                )
                print(json.dumps({"text": text}, ensure_ascii=False) if options["json"] else text)
            else:
                tokens = await client.tokenize(given, add_special_tokens=special, model=model)
                _print(tokens, as_json=options["json"])


def _ids(text: str) -> list[int]:
    ids = []
    for word in text.replace(",", " ").split():
        if not word.isdecimal() or int(word) >= 1 << 32:
            raise ValueError(f"{word[:50]!r} is no token id; --decode takes whole numbers from 0")
        ids.append(int(word))
    return ids


def _print(tokens: list[Token], *, as_json: bool) -> None:
    if as_json:
        ids, texts = [token.id for token in tokens], [token.text for token in tokens]
        print(json.dumps({"count": len(ids), "token_ids": ids, "texts": texts}, ensure_ascii=False))
        return
    table = Table(
        "position", "id", "text", title=counted(len(tokens), "token"), title_justify="left"
    )
    for position, token in enumerate(tokens):
        table.add_row(str(position), str(token.id), Text(repr(token.text)))
    show(table)
