"""`signalbox ps`: shows which models of a running server are loaded, and what each takes."""

import argparse
import asyncio
import json
from collections.abc import Iterable
from typing import Any

from rich.table import Column, Table

from signalbox.client.connection import Connection, connection
from signalbox.client.operations_client import OperationsClient
from signalbox.client.router_flags import add_router_flags
from signalbox.client.scheduler_client import plain
from signalbox.client.tables import duration, make_table, right, show
from signalbox_protos.operations.v1 import model_launcher_pb2, operations_pb2

EXAMPLES = """\
examples
  signalbox ps                 # the models that are loaded, being loaded, or waited for
  signalbox ps --all           # the others, too
  signalbox ps --all --json | jq '.models[].model.name'
"""
GIB = 1 << 30
State = model_launcher_pb2.LaunchedModel.State


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", "-a", action="store_true", help="show all models")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_router_flags(parser)


def run(options: dict[str, Any]) -> None:
    """Prints a line for each model."""
    found = asyncio.run(_ask(options["router"], connection(options)))
    shown = [one for one in found if options["all"] or _is_active(one)]
    if options["json"]:
        print(json.dumps({"models": [plain(one) for one in shown]}))
    else:
        show(_table(shown))


async def _ask(address: str, how: Connection) -> list[operations_pb2.ModelStatus]:
    async with OperationsClient(address, how) as client:
        return await client.models()


def _is_active(status: operations_pb2.ModelStatus) -> bool:
    return status.model.state != State.STATE_UNLOADED


def _table(models: Iterable[operations_pb2.ModelStatus]) -> Table:
    names = ("live", "waiting", "memory", "start took")
    scheduler = Column("scheduler", no_wrap=True)  # other commands are given it
    table = make_table("model", "state", *map(right, names), scheduler, "")
    for status in models:
        model = status.model
        table.add_row(
            model.name,
            State.Name(model.state).removeprefix("STATE_").lower(),
            f"{status.num_live_requests:,}",
            f"{status.num_waiting_requests:,}",
            f"{model.memory_bytes / GIB:.1f} GiB" if model.memory_bytes else "",
            duration(model.last_start_ns / 1e9) if model.last_start_ns else "",
            model.scheduler if model.state == State.STATE_LOADED else "",
            _remark(model),
        )
    return table


def _remark(model: model_launcher_pb2.LaunchedModel) -> str:
    parts = [model.reason] * bool(model.reason)
    if model.retry_after_ns:
        parts.append(f"may start again in {model.retry_after_ns / 1e9:.0f} s")
    parts += ["kept loaded"] * model.is_kept
    return "; ".join(parts)
