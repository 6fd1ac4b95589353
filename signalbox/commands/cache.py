"""`signalbox cache`: what the folder of --kv-disk holds, and its removal."""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpu_worker.hub.gguf_file_names import format_bytes
from gpu_worker.kv_disk.stored_models import StoredModel, clear, stored_models
from signalbox.cached_models.hub_cache import age

EXAMPLES = """\
examples
  signalbox cache list /var/lib/signalbox/kv                  # by model: blocks, space, last use
  signalbox cache clear /var/lib/signalbox/kv                 # all of them
  signalbox cache clear /var/lib/signalbox/kv --tenant team-a # those of one tenant
Files that a worker has are listed and not cleared.
"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `signalbox cache`."""
    parser.add_argument("action", choices=("list", "clear"), help="what to do")
    parser.add_argument("folder", metavar="PATH", type=Path, help="folder of --kv-disk")
    parser.add_argument("--tenant", metavar="NAME", help="with clear, whose blocks (default: all)")
    parser.add_argument("--json", action="store_true", help="with list, print one JSON array")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(options: dict[str, Any]) -> None:
    """Lists or clears. Raises FolderError, and ValueError if workers have some of the files."""
    folder: Path = options["folder"]
    if options["action"] == "list":
        if options["tenant"] is not None:
            raise ValueError("--tenant has no effect with list; its names are not stored")
        _list(folder, as_json=options["json"])
        return
    if options["json"]:
        raise ValueError("--json has no effect with clear")
    num_cleared, num_in_use = clear(folder, options["tenant"])
    print(f"{_sets(num_cleared)} cleared")
    if num_in_use:
        raise ValueError(
            f"{_sets(num_in_use)} of a running worker not cleared; stop the worker, and repeat"
        )


def _list(folder: Path, *, as_json: bool) -> None:
    found = stored_models(folder)
    if as_json:
        print(json.dumps([asdict(one) for one in found]))
        return
    width = max((len(_name(one)) for one in found), default=0)
    for one in found:
        state = "in use" if one.is_in_use else f"written {age(one.used_at)}"
        print(
            f"{_name(one):<{width}}  {one.num_blocks:>9} blocks  "
            f"{format_bytes(one.num_bytes):>10}  {state}"
        )
    total = format_bytes(sum(one.num_bytes for one in found))
    print(f"{_sets(len(found))}, {total}, in {folder}")


def _name(one: StoredModel) -> str:
    return f"{one.model or 'unknown'} ({one.name[:8]})"


def _sets(count: int) -> str:
    return f"{count} set{'' if count == 1 else 's'} of blocks"
