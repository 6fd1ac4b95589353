"""Flags and outputs of `signalbox trace`."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from signalbox.client.connection import connection
from signalbox.client.scheduler_client import SchedulerClient, add_address_flag
from signalbox.client.tables import show
from signalbox.named_files import reading, writing
from signalbox.trace.from_explanation import draw_explained
from signalbox.trace.from_spans import draw_traced
from signalbox.trace.span_file import read_spans
from signalbox.trace.svg import to_html, to_svg
from signalbox.trace.terminal import render
from signalbox.trace.timeline_drawing import Drawing

EXAMPLES = """\
  signalbox serve MODEL --trace-exporter file=spans.jsonl
  signalbox trace spans.jsonl                          the slowest request
  signalbox trace spans.jsonl --request ID --html a.html
  signalbox trace ID                                   what the scheduler remembers, without spans
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `signalbox trace`."""
    parser.add_argument(
        "target",
        metavar="FILE_OR_REQUEST_ID",
        help="file of --trace-exporter file=PATH, or a request id known to the scheduler",
    )
    parser.add_argument(
        "--request",
        metavar="ID",
        help="request of the file: its id, part of it, or its trace id (default: the slowest)",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page instead")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write a picture instead")
    add_address_flag(parser)


def run(options: dict[str, Any]) -> None:
    """Draws one request. Raises NotATrace, Refused or UnusableFile."""
    drawing = _drawing(options)
    for name, text in (("html", to_html), ("svg", to_svg)):
        if (path := options[name]) is not None:
            with writing(path, f"--{name}"):
                path.write_text(text(drawing), encoding="utf-8")
    if options["html"] is None and options["svg"] is None:
        show(render(drawing))


def _drawing(options: dict[str, Any]) -> Drawing:
    path = Path(options["target"])
    if path.is_file():
        with reading(path):
            spans = read_spans(path)
        return draw_traced(spans, options["request"])
    if options["request"] is not None or path.suffix in (".json", ".jsonl") or path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    return asyncio.run(_explained(options))


async def _explained(options: dict[str, Any]) -> Drawing:
    async with SchedulerClient(options["address"], connection(options)) as client:
        parts = await client.explain_all(options["target"])
        slowest = max(parts, key=lambda part: part.age_ns)
        return draw_explained(slowest, of=len(parts))
