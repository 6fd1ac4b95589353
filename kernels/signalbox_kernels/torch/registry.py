"""Registry of the implementations of ops by device type.

An op is known by name. `register` adds an implementation for a device type; a device type without
one gets the plain Torch reference, which runs anywhere.
"""

from collections.abc import Callable
from typing import Any

import torch

Implementation = Callable[..., Any]

_references: dict[str, Implementation] = {}
_implementations: dict[tuple[str, str], Implementation] = {}


def register(op: str, device_type: str, implementation: Implementation) -> None:
    """Makes `implementation` the one that `op` runs on `device_type` ("cpu", "cuda", ...)."""
    if op not in _references:
        raise KeyError(f"no op {op!r}; there are {', '.join(sorted(_references))}")
    _implementations[op, device_type] = implementation


def unregister(op: str, device_type: str) -> None:
    """Removes an implementation, so that the reference runs."""
    _implementations.pop((op, device_type), None)


def register_reference(op: str, implementation: Implementation) -> None:
    """Declares an op by its reference."""
    _references[op] = implementation


def has_own(op: str, device: torch.device) -> bool:
    """Returns whether `device` has an implementation of `op` beside the reference."""
    return (op, device.type) in _implementations


def implementation_of(op: str, device: torch.device) -> Implementation:
    """Returns the implementation of `op` for `device`."""
    return _implementations.get((op, device.type), _references[op])
