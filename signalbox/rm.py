"""`signalbox rm`: removes models from the hub's cache."""

import argparse
from typing import Any

from gpu_worker.loading.gguf_files import format_bytes
from gpu_worker.loading.hub_cache import remove
from signalbox.model_cache import require_hub


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds what `signalbox rm` takes."""
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help="as `signalbox list` names it; all without :TAG"
    )
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Removes each and says what that frees. Raises ModelError, RuntimeError."""
    require_hub()
    for model in options["models"]:
        print(f"removed {model}, {format_bytes(remove(model))}")
