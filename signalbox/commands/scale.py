"""`signalbox scale`: sets how many workers the launcher of a scheduler's workers keeps."""

import argparse
import asyncio
from typing import Any

from protos.scheduler.v1 import stats_pb2
from signalbox.client.connection import Connection, connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag
from signalbox.settings.worker_range import WorkerRange

EXAMPLES = """\
examples
  signalbox scale --workers 4          # starts workers, or drains those with the least to move
  signalbox scale --workers 2..6       # follows the load
It is for workers that `signalbox serve` keeps, on this machine or on Ray.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `signalbox scale`."""
    parser.add_argument(
        "--workers",
        required=True,
        metavar="N|MIN..MAX",
        help="workers to keep, or bounds between which their number follows the load",
    )
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Asks the scheduler, which asks the launcher; prints what it agreed to."""
    try:
        asked = WorkerRange.parse(options["workers"])
    except ValueError as error:
        raise ValueError(f"--workers is {options['workers']!r}: {error}") from None
    launcher = asyncio.run(_scale(options["address"], connection(options), asked))
    bounds = WorkerRange(launcher.min_workers, launcher.max_workers)
    print(f"{launcher.placement} workers: {bounds}; {launcher.num_wanted} are to run now")


async def _scale(address: str, how: Connection, bounds: WorkerRange) -> stats_pb2.LauncherState:
    async with SchedulerClient(address, how) as client:
        return await client.scale(bounds.least, bounds.most)
