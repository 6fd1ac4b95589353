"""`signalbox trace`: spans of `--trace-exporter file=PATH` as a file for Perfetto."""

import argparse
import json
from pathlib import Path
from typing import Any

from signalbox.client.named_files import reading, writing
from signalbox.commands.inspect.chrome_trace import chrome_trace, spans_of_request
from signalbox.commands.inspect.span_file import read_spans
from signalbox.settings.flags.parser import CommandParser

EXAMPLES = """\
  signalbox serve MODEL --trace-exporter file=spans.jsonl
  signalbox trace spans.jsonl --chrome-trace trace.json      open it at ui.perfetto.dev
  signalbox trace spans.jsonl --chrome-trace one.json --request ID
"""
_REMEDY = "--chrome-trace OUT writes what ui.perfetto.dev draws"


def add_flags(parser: argparse.ArgumentParser) -> None:
    assert isinstance(parser, CommandParser)
    parser.remedies |= dict.fromkeys(("--html", "--svg"), _REMEDY)
    parser.add_argument(
        "file", metavar="FILE", type=Path, help="spans of --trace-exporter file=PATH"
    )
    parser.add_argument(
        "--chrome-trace",
        metavar="OUT",
        type=Path,
        help="file to write, for ui.perfetto.dev or chrome://tracing",
    )
    parser.add_argument(
        "--request",
        metavar="ID",
        help="write one request and its steps: its id, part of it, or its trace id (default: all)",
    )


def run(options: dict[str, Any]) -> None:
    """Writes the spans of a file. Raises NotATrace or UnusableFile."""
    path: Path | None = options["chrome_trace"]
    if path is None:
        raise ValueError(
            f"nothing is drawn in the terminal; {_REMEDY}, and `signalbox explain REQUEST_ID`"
            " shows the phases of one request"
        )
    if path.resolve() == options["file"].resolve():
        raise ValueError(f"--chrome-trace: {path} has the spans themselves; name another file")
    with reading(options["file"]):
        spans = read_spans(options["file"])
    if options["request"] is not None:
        spans = spans_of_request(spans, options["request"])
    with writing(path, "--chrome-trace"):
        path.write_text(json.dumps(chrome_trace(spans)), encoding="utf-8")
    print(f"{len(spans)} spans written to {path}, for ui.perfetto.dev or chrome://tracing")
