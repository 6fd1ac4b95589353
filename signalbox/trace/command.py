"""Flags and outputs of `signalbox trace`."""

import argparse
from pathlib import Path
from typing import Any

from signalbox.client.tables import show
from signalbox.named_files import reading, writing
from signalbox.trace.from_spans import draw_traced
from signalbox.trace.span_file import read_spans
from signalbox.trace.svg import to_html, to_svg
from signalbox.trace.terminal import render

EXAMPLES = """\
  signalbox serve MODEL --trace-exporter file=spans.jsonl
  signalbox trace spans.jsonl                          the slowest request
  signalbox trace spans.jsonl --request ID --html a.html
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `signalbox trace`."""
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="spans of --trace-exporter file=PATH"
    )
    parser.add_argument(
        "--request",
        metavar="ID",
        help="request of the file: its id, part of it, or its trace id (default: the slowest)",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page instead")
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write a picture instead")


def run(options: dict[str, Any]) -> None:
    """Draws one request. Raises NotATrace or UnusableFile."""
    with reading(options["file"]):
        spans = read_spans(options["file"])
    drawing = draw_traced(spans, options["request"])
    for name, text in (("html", to_html), ("svg", to_svg)):
        if (path := options[name]) is not None:
            with writing(path, f"--{name}"):
                path.write_text(text(drawing), encoding="utf-8")
    if options["html"] is None and options["svg"] is None:
        show(render(drawing))
