"""`signalbox dump`: writes the scheduler's complete state to a file, for bug reports."""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable
from typing import Any

from signalbox.client.connection import Connection, connection
from signalbox.client.named_files import writing
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag, plain
from signalbox_protos.scheduler.v1 import state_pb2


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", help="file to write (default: standard output)"
    )
    parser.add_argument(
        "--token-ids",
        action="store_true",
        help="include the token ids of prompts and outputs, which are users' texts",
    )
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Writes the state as one JSON object."""
    parts = asyncio.run(
        _ask(options["address"], connection(options), include_token_ids=options["token_ids"])
    )
    with writing(options["file"]):
        write_state(parts, options["file"])


async def _ask(
    address: str, how: Connection, *, include_token_ids: bool
) -> list[state_pb2.DumpStateResponse]:
    async with SchedulerClient(address, how) as client:
        return [part async for part in client.state(include_token_ids=include_token_ids)]


def write_state(parts: Iterable[state_pb2.DumpStateResponse], path: str | None) -> None:
    """Writes a state's parts as one JSON object; only the owner may read the file."""
    state: dict[str, Any] = {"cluster": {}, "workers": [], "requests": []}
    for part in parts:
        content = plain(part)
        state["cluster"] |= content.get("cluster", {})
        state["workers"] += [content["worker"]] if "worker" in content else []
        state["requests"] += [content["request"]] if "request" in content else []
    text = _in_lines(state)
    if path is None:
        sys.stdout.write(text)
        return
    with open(path, "w", opener=_for_owner, encoding="utf-8") as file:
        file.write(text)


def _in_lines(state: dict[str, Any]) -> str:
    """Returns JSON with a line for each worker and request."""
    parts = [f'"cluster": {json.dumps(state["cluster"])}']
    for name in ("workers", "requests"):
        lines = ",\n".join(json.dumps(one) for one in state[name])
        parts.append(f'"{name}": [\n{lines}\n]')
    return "{" + ",\n".join(parts) + "}\n"


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
