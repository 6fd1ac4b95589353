"""Models outside the tree: modules that call `register_model` when they are imported.

A module is named by `--model-plugin`, or by an entry point of the group "signalbox.models" in an
installed distribution. An entry point is called like the architecture that its module registers,
so that only the module of the model at hand is imported.
"""

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from signalbox_worker.config import ModelError

GROUP = "signalbox.models"


def import_plugins(modules: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """Imports `modules`, and those installed for the architectures that a config.json names.

    Returns the names of all of them.
    """
    for module in modules:
        _import(module, "--model-plugin")
    imported = list(modules)
    for architecture in config.get("architectures") or ():
        for entry in entry_points(group=GROUP, name=architecture):
            _import(entry.module, f"entry point {architecture!r} of {GROUP}")
            imported.append(entry.module)
    return imported


def _import(module: str, origin: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:  # foreign code may raise anything
        lines = str(error).splitlines() or [""]
        raise ModelError(
            f"{origin}: {module} cannot be imported ({type(error).__name__}: {lines[0]})"
        ) from error
