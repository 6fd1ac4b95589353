"""`signalbox explain`: shows the history of one request, as bars and a table or as JSON."""

import argparse
import asyncio
import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from signalbox.client.connection import Connection, connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag, plain
from signalbox.client.tables import make_table, right, show
from signalbox.commands.inspect.stage_use import stage_loads, stage_table
from signalbox_protos.scheduler.v1 import explain_pb2 as pb

_COLOURS = {"queue": "#e0a526", "prefill": "#2a9bb8", "decode": "#4d9b52", "preempted": "#d1495b"}
_BAR_WIDTH = 36


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "request_id",
        metavar="REQUEST_ID",
        help="id that clients receive, from `generate --json` or as `id` of the HTTP API, or the"
        " first characters of it, as in `top`",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Prints the timeline of a request. Raises NotKnown if the scheduler has no record of it."""
    name = options["request_id"].removesuffix("…")  # as `top` cuts a long one
    parts = asyncio.run(_ask(options["address"], connection(options), name))
    if options["json"]:
        whole = {"request_id": name, "prompts": [plain(part) for part in parts]}
        print(json.dumps(whole if len(parts) > 1 else plain(parts[0])))
    else:
        show(render_all(parts))


async def _ask(address: str, how: Connection, request_id: str) -> list[pb.ExplainResponse]:
    async with SchedulerClient(address, how) as client:
        return await client.explain_all(request_id)


def render_all(parts: Sequence[pb.ExplainResponse]) -> RenderableType:
    """Returns a line for each prompt if there are several, and the slowest one in full."""
    slowest = max(parts, key=lambda part: part.age_ns)
    if len(parts) == 1:
        return render(slowest)
    return Group(_prompts(parts), "\nthe slowest:\n", render(slowest))


def _prompts(parts: Sequence[pb.ExplainResponse]) -> Table:
    names = ("in all", "queued", "prefill", "decode", "preempted")
    table = make_table("prompt", *map(right, names))
    for part in parts:
        times = (part.age_ns, part.queued_ns, part.prefill_ns, part.decode_ns, part.preempted_ns)
        table.add_row(f"-{part.request_id.rpartition('-')[2]}", *map(_seconds, times))
    return table


def render(answer: pb.ExplainResponse) -> RenderableType:
    """Returns the summary, a bar for each lane, and a line for each event."""
    text = answer.text
    parts: list[RenderableType] = [_summary(answer), *map(Text, text.summary), ""]
    parts += [_lanes(answer), ""]
    table = make_table(right("at"), "event", "")
    for line in text.lines:
        table.add_row(_seconds(line.at_ns), line.event, Text(line.details))
    parts.append(table)
    if answer.HasField("stages"):
        parts += ["\nthe stages of its worker, since that took it:", _stages(answer.stages)]
    return Group(*parts)


def _summary(answer: pb.ExplainResponse) -> Text:
    state = pb.RequestState.Name(answer.state).removeprefix("REQUEST_STATE_").lower()
    text = Text.assemble((answer.request_id, "bold"), f"  {state}")
    text.append(f" after {_seconds(answer.age_ns)}" if state == "ended" else "")
    text.append(f", on {answer.worker}" if answer.worker else "")
    text.append(f" ({answer.role})" if answer.role else "")
    if answer.code:
        text.append(f"\n{answer.message}", style="red")
    return text


def _lanes(answer: pb.ExplainResponse) -> Table:
    """Returns a bar for each lane that has spans."""
    lanes: dict[str, list[pb.HistorySpan]] = {lane: [] for lane in _COLOURS}
    for span in answer.text.spans:
        lanes.setdefault(span.lane, []).append(span)
    table = Table.grid(padding=(0, 2))
    for lane, spans in lanes.items():
        total_ns = sum(span.ends_at_ns - span.begins_at_ns for span in spans)
        if spans:
            length = Text(_seconds(total_ns), justify="right")
            table.add_row(lane, _bar(spans, answer.age_ns, _COLOURS.get(lane, "")), length)
    return table


def _stages(use: pb.StageUse) -> Table:
    return stage_table(stage_loads(pb.StageUse(), use))


def _bar(spans: Iterable[pb.HistorySpan], whole_ns: int, colour: str) -> Text:
    """Returns a bar with each span in proportion, at least one cell wide."""
    cells = [" "] * _BAR_WIDTH
    for span in spans:
        first = min(_BAR_WIDTH - 1, span.begins_at_ns * _BAR_WIDTH // max(1, whole_ns))
        last = max(first + 1, round(span.ends_at_ns * _BAR_WIDTH / max(1, whole_ns)))
        cells[first:last] = "█" * (min(last, _BAR_WIDTH) - first)
    return Text("".join(cells), style=colour)


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3f} s"
