"""`signalbox list`: the models in the hub's cache, with their sizes."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from signalbox.commands.cached_models.hub_cache import age
from signalbox_worker.files.hub.cached_models import CachedModel, cached_models
from signalbox_worker.files.hub.file_transfer import cache_folder
from signalbox_worker.files.hub.gguf_file_names import format_bytes


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON array instead")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Prints a line for each model. Raises RuntimeError."""
    models = cached_models()
    if options["json"]:
        print(json.dumps([asdict(model) for model in models]))
        return
    width = max((len(model.name) for model in models), default=0)
    for model in models:
        print(f"{model.name:<{width}}  {format_bytes(model.num_bytes):>10}  {_state(model)}")
    total = format_bytes(sum(model.num_bytes for model in models))
    print(f"{len(models)} model{'' if len(models) == 1 else 's'}, {total}, in {cache_folder()}")


def _state(model: CachedModel) -> str:
    when = age(model.modified_at)
    return when if model.is_whole else f"{when}, incomplete; pull it again to go on"
