"""`signalbox unload`: has a running server end a model that it has loaded."""

import argparse
import asyncio
from typing import Any

from signalbox.client.connection import Connection, connection
from signalbox.client.operations_client import OperationsClient
from signalbox.client.router_flags import add_router_flags

EXAMPLES = """\
examples
  signalbox unload qwen        # returns when its processes have ended
Answers that are being written are finished first. The next request that names the model loads it
again.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the model, as in `signalbox ps`")
    add_router_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Returns when the model has ended."""
    asyncio.run(_unload(options["router"], connection(options), options["name"]))
    print(f"{options['name']} is not loaded any more")


async def _unload(address: str, how: Connection, name: str) -> None:
    async with OperationsClient(address, how) as client:
        await client.unload(name)
