"""Starts a service with some of its constants replaced, to show what happens without a bound.

`python -m tests.hostile.launch '{"signalbox_router.prompt.chat.conversation.MAX_TOOLS": 1e9}'
router ...` is `signalbox router ...` with that constant. The last name but one is a module, a
class, or a dataclass whose field's default is replaced.
"""

import dataclasses
import importlib
import json
import sys
from typing import Any


def replace(path: str, value: object) -> None:
    """Sets a module's or a class's attribute, or a dataclass field's default, which must exist."""
    owner_path, _, name = path.rpartition(".")
    owner = _owner(owner_path)
    defaults = getattr(getattr(owner, "__init__", None), "__kwdefaults__", None) or {}
    if dataclasses.is_dataclass(owner) and name in defaults:
        defaults[name] = value
        return
    if not hasattr(owner, name):
        raise SystemExit(f"{owner_path} has no {name}; a bound that is gone is not removed")
    setattr(owner, name, value)


def _owner(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, name = path.rpartition(".")
        return getattr(importlib.import_module(module), name)


def main() -> int:
    replaced, *arguments = sys.argv[1:]
    for path, value in json.loads(replaced).items():
        replace(path, value)
    sys.argv[1:] = arguments
    from signalbox.__main__ import main as run  # after the constants, which it may copy

    return run()


if __name__ == "__main__":
    sys.exit(main())
