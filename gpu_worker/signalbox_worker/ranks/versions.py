"""Versions of what all ranks must have alike."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def versions() -> str:
    """Returns those of Signalbox, Python and PyTorch, as one line."""
    packages = {"Signalbox": "signalbox-serving", "PyTorch": "torch"}
    found = [f"{name} {_version(package)}" for name, package in packages.items()]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
