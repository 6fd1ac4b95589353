"""`signalbox load`: has a running server load one of its models before a request names it."""

import argparse
import asyncio
import time
from typing import Any

from signalbox.client.connection import Connection, connection
from signalbox.client.operations_client import OperationsClient
from signalbox.client.router_flags import add_router_flags

EXAMPLES = """\
examples
  signalbox load qwen          # returns when it is loaded
Models that are in the way end first, as if a request had named the model.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the model, as in `signalbox models`")
    add_router_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Returns when the model is loaded; prints how long that took."""
    began = time.monotonic()
    asyncio.run(_load(options["router"], connection(options), options["name"]))
    print(f"{options['name']} is loaded, after {time.monotonic() - began:.1f} s")


async def _load(address: str, how: Connection, name: str) -> None:
    async with OperationsClient(address, how) as client:
        await client.load(name)
