"""`signalbox profile`: shows the time of a worker's steps, and its memory."""

import argparse
import asyncio
import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from signalbox.client.connection import Connection, connection
from signalbox.client.named_files import writing
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag
from signalbox.client.tables import make_table, right
from signalbox.client.worker_client import WorkerClient
from signalbox_protos.worker.v1 import worker_pb2 as pb

EXAMPLES = """\
  signalbox profile                             two seconds of the only worker
  signalbox profile --worker gpu-3:50053 --seconds 5 --output busy.json.gz
  signalbox profile --memory                    where its memory goes, and nothing else
"""
NUM_SHOWN = 12
MAX_SECONDS = 60
"""Longest recording that workers accept, in seconds."""
_HIDDEN = ("python_function", "Trace", "ac2g", "fwdbwd")


@dataclass(frozen=True, slots=True)
class Spent:
    """Total calls and time of one name."""

    name: str
    count: int
    total_us: float


class _Recorded(NamedTuple):
    num_steps: int
    kernel_ns: dict[str, int]
    trace: bytes


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--worker", metavar="HOST:PORT", help="address of the worker, if the scheduler has several"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=2.0,
        help=f"seconds to record, at most {MAX_SECONDS} (default 2)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("profile.json.gz"),
        help="file for ui.perfetto.dev or chrome://tracing (default profile.json.gz)",
    )
    parser.add_argument("--shapes", action="store_true", help="record shapes of operands")
    parser.add_argument("--stacks", action="store_true", help="record Python's call stacks")
    parser.add_argument("--memory", action="store_true", help="only show the use of memory")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Prints the memory of a worker, and records its steps."""
    if not 0 < options["seconds"] <= MAX_SECONDS:
        raise ValueError(
            f"--seconds is {options['seconds']:g}; allowed: more than 0, at most {MAX_SECONDS}"
        )
    asyncio.run(_run(options))


async def _run(options: dict[str, Any]) -> None:
    how = connection(options)
    address = options["worker"] or await _only_worker(options["address"], how)
    console = Console(highlight=False)
    async with WorkerClient(address, how) as worker:
        info = await worker.info()
        if options["memory"]:
            _print_memory(console, info, as_json=options["json"])
            return
        with console.status(f"recording {options['seconds']:g} s of {address}"):
            recorded = await _record(worker, options)
    with writing(options["output"], "--output"):
        options["output"].write_bytes(recorded.trace)
    num_steps, spent = recorded.num_steps, time_spent(recorded.trace)
    if options["json"]:
        names = {one.name: {"count": one.count, "total_us": one.total_us} for one in spent}
        memory = _memory(info)
        kernels = recorded.kernel_ns
        print(
            json.dumps(
                {"num_steps": num_steps, "time": names, "kernel_ns": kernels, "memory": memory}
            )
        )
        return
    console.print(f"{num_steps} steps of {info.model.name} in {options['seconds']:g} s\n")
    console.print(_table(spent))
    if recorded.kernel_ns:
        console.print(f"\nof forward, all threads: {_kernels(recorded.kernel_ns)}")
    _print_memory(console, info, as_json=False)
    console.print(f"\nwritten to {options['output']}, for ui.perfetto.dev or chrome://tracing")


async def _only_worker(address: str, how: Connection) -> str:
    async with SchedulerClient(address, how) as scheduler:
        workers = [worker.address for worker in (await scheduler.stats()).workers]
    if len(workers) != 1:
        there_are = ", ".join(workers) or "none"
        raise ValueError(f"--worker must say which of the workers: {there_are}")
    return workers[0]


async def _record(worker: WorkerClient, options: dict[str, Any]) -> _Recorded:
    request = pb.ProfileRequest(
        duration_ns=max(0, int(options["seconds"] * 1e9)),
        record_shapes=options["shapes"],
        with_stack=options["stacks"],
    )
    parts = [part async for part in worker.profile(request)]
    trace = b"".join(part.chunk for part in parts)
    return _Recorded(parts[0].num_steps, dict(parts[0].kernel_ns), trace)


def _kernels(kernel_ns: dict[str, int]) -> str:
    whole_ns = sum(kernel_ns.values())
    ordered = sorted(kernel_ns.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {100 * ns / whole_ns:.0f} %" for name, ns in ordered)


def time_spent(trace: bytes) -> list[Spent]:
    """Sums a gzipped Chrome trace by name, the longest first. Nested events count for both
    names."""
    totals: dict[str, tuple[int, float]] = {}
    for event in json.loads(gzip.decompress(trace))["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") not in _HIDDEN:
            count, total = totals.get(event["name"], (0, 0.0))
            totals[event["name"]] = count + 1, total + float(event["dur"])
    spent = [Spent(name, count, total) for name, (count, total) in totals.items()]
    return sorted(spent, key=lambda one: -one.total_us)


def _table(spent: Iterable[Spent]) -> Table:
    table = make_table("what", *map(right, ("calls", "ms in all", "ms each")))
    for one in list(spent)[:NUM_SHOWN]:
        total_ms = one.total_us / 1e3
        table.add_row(one.name, str(one.count), f"{total_ms:.1f}", f"{total_ms / one.count:.3f}")
    return table


def _memory(info: pb.GetWorkerInfoResponse) -> dict[str, int]:
    return {f"{part.name}_bytes": part.num_bytes for part in info.memory if part.num_bytes}


def _print_memory(console: Console, info: pb.GetWorkerInfoResponse, *, as_json: bool) -> None:
    if not info.memory:
        raise ValueError("a simulated worker holds nothing in memory")
    if as_json:
        print(json.dumps(_memory(info)))
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right")
    for part in info.memory:
        table.add_row(f"{part.num_bytes / (1 << 20):.1f} MiB", part.meaning)
    console.print()
    console.print(table)
