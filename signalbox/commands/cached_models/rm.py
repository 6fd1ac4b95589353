"""`signalbox rm`: removes models from the hub's cache."""

import argparse
from typing import Any

from signalbox_worker.files.hub.cached_models import remove
from signalbox_worker.files.hub.gguf_file_names import format_bytes


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="as `signalbox list` names it; all without :TAG"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Removes each model and prints the bytes freed. Raises ModelError, RuntimeError."""
    for model in options["models"]:
        print(f"removed {model}, {format_bytes(remove(model))}")
