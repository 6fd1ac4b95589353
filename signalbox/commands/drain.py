"""`signalbox drain`: lets a worker leave, which hands its requests over to others."""

import argparse
import asyncio
from typing import Any

from signalbox.client.connection import Connection, connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag

EXAMPLES = """\
examples
  signalbox drain 10.0.0.7:50053       # as signalbox top names it
The command does not wait: the worker has left when `signalbox top` no longer shows it.
Workers that `signalbox serve` keeps are started again: `serve --workers N` says how many.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("worker", metavar="WORKER", help="address of the worker, HOST:PORT")
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Asks the scheduler; prints how much is on the worker."""
    worker = options["worker"]
    num_requests = asyncio.run(_drain(options["address"], connection(options), worker))
    print(f"{worker} drains; requests on it: {num_requests}")


async def _drain(address: str, how: Connection, worker: str) -> int:
    async with SchedulerClient(address, how) as client:
        return await client.drain(worker)
