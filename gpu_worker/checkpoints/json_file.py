"""Reads the JSON files of a model or of an adapter, and what may have no name twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from gpu_worker.config import ModelError

T = TypeVar("T")


def dict_of_distinct(pairs: list[tuple[str, T]]) -> dict[str, T]:
    """Returns pairs by their names. Raises ValueError if two have one name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("two of its entries have one name")
    return found


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object; names the file if that fails."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object; fetch it again")
    return value
