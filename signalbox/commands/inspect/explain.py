"""`signalbox explain`: shows the history of one request, as bars and a table or as JSON."""

import argparse
import asyncio
import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from signalbox.client.connection import Connection, connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag, plain
from signalbox.client.tables import make_table, right, show
from signalbox.commands.inspect.stage_use import stage_loads, stage_table
from signalbox_contract.wording import counted
from signalbox_protos.scheduler.v1 import explain_pb2 as pb

_REASONS = {
    pb.WAIT_REASON_NEXT_STEP: "the next step",
    pb.WAIT_REASON_NO_WORKER: "a worker that takes it",
    pb.WAIT_REASON_TOKENS: "the token budget",
    pb.WAIT_REASON_SEQUENCES: "a place among the sequences",
    pb.WAIT_REASON_BLOCKS: "KV blocks",
    pb.WAIT_REASON_SWAPPED_FIRST: "swapped requests to go first",
    pb.WAIT_REASON_GRAMMAR: "its structured output to be compiled",
    pb.WAIT_REASON_SUSPECT: "a suspect to compute alone",
    pb.WAIT_REASON_LOADING: "its prefix to be fetched",
}
_COLOURS = {"queue": "#e0a526", "prefill": "#2a9bb8", "decode": "#4d9b52", "preempted": "#d1495b"}
_BAR_WIDTH = 36

_Interval = tuple[int, int]
"""Start and end, in nanoseconds since the request arrived."""


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
    """Returns the summary, a bar for each phase, and a line for each event."""
    parts: list[RenderableType] = [_summary(answer), "", _phases(answer), "", _events(answer)]
    if answer.HasField("stages"):
        parts += ["\nthe stages of its worker, since that took it:", _stages(answer.stages)]
    if answer.waits:
        parts.append(f"\nwaits behind {answer.num_ahead}, for {_waits(answer.waits)}")
    if answer.num_dropped_events:
        parts.append(f"\n{answer.num_dropped_events} events between are not kept")
    return Group(*parts)


def _summary(answer: pb.ExplainResponse) -> Text:
    state = pb.RequestState.Name(answer.state).removeprefix("REQUEST_STATE_").lower()
    text = Text.assemble((answer.request_id, "bold"), f"  {state}")
    text.append(f" after {_seconds(answer.age_ns)}" if state == "ended" else "")
    text.append(f", on {answer.worker}" if answer.worker else "")
    text.append(f" ({answer.role})" if answer.role else "")
    if answer.code:
        text.append(f"\n{answer.message}", style="red")
    cached = f" ({answer.num_cached_tokens} cached)" if answer.num_cached_tokens else ""
    branches = f" in {answer.num_sequences} sequences" if answer.num_sequences > 1 else ""
    text.append(
        f"\nprompt {counted(answer.num_prompt_tokens, 'token')}{cached},"
        f" output {counted(answer.num_output_tokens, 'token')}{branches},"
        f" preempted {_times(answer.num_preemptions)}"
    )
    for sample in answer.samples:
        text.append(f"\n{sample.meaning.rstrip('.')}: {sample.gauge or sample.counter:,.0f}")
    return text


def _phases(answer: pb.ExplainResponse) -> Table:
    ends = (answer.queued_ns, answer.queued_ns + answer.prefill_ns, answer.age_ns)
    spans = zip(("queue", "prefill", "decode"), (0, *ends), ends, strict=False)
    rows = [(name, [(start, end)], end - start) for name, start, end in spans]
    rows.append(("preempted", _preemptions(answer), answer.preempted_ns))
    table = Table.grid(padding=(0, 2))
    for name, intervals, total_ns in rows:
        if total_ns:
            length = Text(_seconds(total_ns), justify="right")
            table.add_row(name, _bar(intervals, answer.age_ns, _COLOURS[name]), length)
    return table


def _stages(use: pb.StageUse) -> Table:
    return stage_table(stage_loads(pb.StageUse(), use))


def _bar(intervals: Iterable[_Interval], whole_ns: int, colour: str) -> Text:
    """Returns a bar with each interval in proportion, at least one cell wide."""
    cells = [" "] * _BAR_WIDTH
    for start_ns, end_ns in intervals:
        first = min(_BAR_WIDTH - 1, start_ns * _BAR_WIDTH // max(1, whole_ns))
        last = max(first + 1, round(end_ns * _BAR_WIDTH / max(1, whole_ns)))
        cells[first:last] = "█" * (min(last, _BAR_WIDTH) - first)
    return Text("".join(cells), style=colour)


def _preemptions(answer: pb.ExplainResponse) -> list[_Interval]:
    """Returns the intervals without progress: from each PREEMPTED to the RESUMED after it."""
    intervals, out_since = [], None
    for event in answer.events:
        if event.kind == pb.EVENT_KIND_PREEMPTED:
            out_since = event.at_ns
        elif event.kind == pb.EVENT_KIND_RESUMED and out_since is not None:
            intervals.append((out_since, event.at_ns))
            out_since = None
    if out_since is not None:
        intervals.append((out_since, answer.age_ns))
    return intervals


def _events(answer: pb.ExplainResponse) -> Table:
    table = make_table(right("at"), "event", "")
    for kind, run_of_events in groupby(answer.events, key=lambda event: event.kind):
        events = list(run_of_events)
        if kind == pb.EVENT_KIND_PREFILL and len(events) > 1:
            table.add_row(_seconds(events[0].at_ns), "prefill", _chunks(events))
            continue
        for event in events:
            name = pb.EventKind.Name(kind).removeprefix("EVENT_KIND_").replace("_", " ").lower()
            table.add_row(_seconds(event.at_ns), name, _details(event))
    return table


def _chunks(events: list[pb.Event]) -> str:
    num_tokens = sum(event.num_tokens for event in events)
    steps = f"steps {events[0].step_id} to {events[-1].step_id}"
    return f"{counted(num_tokens, 'token')} in {len(events)} chunks{_cached(events[0])}, {steps}"


def _cached(event: pb.Event) -> str:
    return f" behind {event.num_cached_tokens} cached ones" if event.num_cached_tokens else ""


def _details(event: pb.Event) -> str:
    match event.kind:
        case pb.EVENT_KIND_QUEUED:
            return f"behind {event.num_ahead}" if event.num_ahead else "first in the queue"
        case pb.EVENT_KIND_SCHEDULED | pb.EVENT_KIND_RESUMED:
            return _resumed(event)
        case pb.EVENT_KIND_PREFILL:
            tokens = counted(event.num_tokens, "token")
            return f"{tokens}{_cached(event)}, step {event.step_id}"
        case pb.EVENT_KIND_PREEMPTED:
            return _preempted(event)
        case pb.EVENT_KIND_FORKED:
            return f"{event.num_sequences} sequences"
        case pb.EVENT_KIND_SEQUENCE_FINISHED:
            return f"sequence {event.branch}: {event.detail.lower()}"
        case pb.EVENT_KIND_MOVED:
            return f"the worker {event.worker} was {event.detail}"
        case pb.EVENT_KIND_SUSPECTED:
            return f"it was in flight: computes alone for {counted(event.num_tokens, 'token')}"
        case pb.EVENT_KIND_CLEARED:
            return f"it was not the cause: computes with others, step {event.step_id}"
        case pb.EVENT_KIND_FETCHED | pb.EVENT_KIND_STORED:
            return _moved(event)
        case pb.EVENT_KIND_MIGRATED:
            return f"to {event.worker}, {_moved(event)} without a token"
        case pb.EVENT_KIND_DEAR_MASKS:
            return _dear(event)
        case pb.EVENT_KIND_ENDED:
            return event.detail.lower() if event.detail.isupper() else event.detail
        case _:
            return _fields(event)


def _fields(event: pb.Event) -> str:
    """Returns what is set of an event that has no words of its own here."""
    named = {field.name: value for field, value in event.ListFields()}
    names = named.keys() - {"kind", "at_ns", "worker", "waits"}
    return ", ".join(f"{name.replace('_', ' ')} {named[name]}" for name in sorted(names))


def _resumed(event: pb.Event) -> str:
    text = f"by {event.worker}, step {event.step_id}"
    if event.is_swap:
        text += f", {counted(event.num_blocks, 'block')} swapped in"
    return text + (f"; waited for {_waits(event.waits)}" if event.waits else "")


def _dear(event: pb.Event) -> str:
    what = "the masks of its payer's requests take long"
    if event.duration_ns:
        what = f"the mask of a token takes {event.duration_ns / 1e6:.1f} ms"
    return f"{what}: sits steps out while others run, step {event.step_id}"


def _moved(event: pb.Event) -> str:
    blocks = counted(event.num_blocks, "block")
    text = f"{blocks}, {event.num_bytes:,} bytes in {_seconds(event.duration_ns)}"
    if event.store:
        store = "disk" if event.store == "disk" else f"{event.store} store"
        text += f" {'to' if event.kind == pb.EVENT_KIND_STORED else 'from'} the {store}"
    elif event.source:
        text += f" from {event.source}"
    return f"{text}: {event.detail}" if event.detail else text


def _preempted(event: pb.Event) -> str:
    how = "swapped out" if event.is_swap else "given up, to be recomputed"
    blocks = counted(event.num_blocks, "block")
    return f"{blocks} {how}, for {event.other_request_id}, step {event.step_id}"


def _waits(waits: Iterable[pb.Wait]) -> str:
    return ", ".join(
        f"{_REASONS.get(wait.reason, '?')} {_seconds(wait.duration_ns)}" for wait in waits
    )


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:.3f} s"


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
