"""`signalbox top`: shows the load of a scheduler and its workers, in the terminal, every second."""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import termios
import tty
from collections.abc import Iterator
from typing import Any

from rich.live import Live

from signalbox.client.connection import Connection, connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag
from signalbox.client.service_client import Unreachable
from signalbox.client.tables import show
from signalbox.commands.inspect.load_rates import LoadRates, measure
from signalbox.commands.inspect.top_view import render
from signalbox_protos.scheduler.v1 import stats_pb2 as pb

MAX_REQUESTS = 30
"""Requests that are listed, the oldest first."""
MAX_SESSIONS = 20
"""Sessions that are listed, the last used first."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="seconds between two updates; rates are averages over them (default 1)",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one measurement (default if not on a terminal)"
    )
    parser.add_argument("--json", action="store_true", help="with --once: print one JSON object")
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Shows the load until `q` or Ctrl-C, or once."""
    address, interval_s = options["address"], options["interval"]
    how = connection(options)
    if interval_s <= 0:
        raise ValueError(f"--interval is {interval_s}; it must be above 0")
    once = options["once"] or not sys.stdout.isatty()
    if options["json"] and not once:
        raise ValueError("--json goes with --once")
    if once:
        _print(asyncio.run(_look(address, how, interval_s)), address, as_json=options["json"])
        return
    try:
        asyncio.run(_watch(address, how, interval_s))
    except KeyboardInterrupt:
        return  # q and Ctrl-C end the display


def _print(load: LoadRates, address: str, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(load)))
    else:
        show(render(load, address))


async def _look(address: str, how: Connection, interval_s: float) -> LoadRates:
    async with SchedulerClient(address, how) as client:
        before = await client.stats()
        await asyncio.sleep(interval_s)
        return measure(before, await _stats(client))


async def _stats(client: SchedulerClient) -> pb.GetStatsResponse:
    return await client.stats(max_live_requests=MAX_REQUESTS, max_sessions=MAX_SESSIONS)


async def _watch(address: str, how: Connection, interval_s: float) -> None:
    """Redraws until `q` is typed; shows the problem while the scheduler does not answer."""
    watch = Watch(address)
    async with SchedulerClient(address, how) as client:
        with Live(screen=True, auto_refresh=False) as live, _typed("q") as leaves:
            while not leaves.is_set():
                try:
                    watch.observe(await _stats(client))
                except Unreachable as error:
                    watch.lost(str(error))
                live.update(watch.view(), refresh=True)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(leaves.wait(), interval_s)


@contextlib.contextmanager
def _typed(key: str) -> Iterator[asyncio.Event]:
    """Yields an event that is set when `key` is typed; a terminal needs no Enter."""
    pressed = asyncio.Event()
    if not sys.stdin.isatty():
        yield pressed
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        if key.encode() in os.read(terminal, 64).lower():
            pressed.set()

    tty.setcbreak(terminal)
    asyncio.get_running_loop().add_reader(terminal, read)
    try:
        yield pressed
    finally:
        asyncio.get_running_loop().remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


class Watch:
    """The last load, and the problem since, if there is one."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._before: pb.GetStatsResponse | None = None
        self._load: LoadRates | None = None
        self._problem = ""

    def observe(self, stats: pb.GetStatsResponse) -> None:
        """Stores an answer. A restarted scheduler's answer begins a new series."""
        before, self._before, self._problem = self._before, stats, ""
        if before is None or stats.uptime_ns < before.uptime_ns:
            before = stats
        self._load = measure(before, stats)

    def lost(self, problem: str) -> None:
        self._problem = f"{problem}; trying again"

    def view(self) -> Any:
        return render(self._load, self._address, problem=self._problem, note="  (q ends)")
