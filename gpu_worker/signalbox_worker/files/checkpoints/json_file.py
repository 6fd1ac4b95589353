"""Reads the JSON files of a model or of an adapter, and what may have no name twice."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from signalbox_worker.config import ModelError

T = TypeVar("T")


def dict_of_distinct(pairs: list[tuple[str, T]]) -> dict[str, T]:
    """Returns pairs by their names. Raises ValueError if two have one name."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("two of its entries have one name")
    return found


def read_json(path: Path, *, max_bytes: int | None = None) -> Mapping[str, Any]:
    """Reads a JSON object; names the file if that fails.

    Args:
        max_bytes: of the file; None reads any.
    """
    try:
        with path.open("rb") as file:
            content = file.read(-1 if max_bytes is None else max_bytes + 1)
        if max_bytes is not None and len(content) > max_bytes:
            raise ModelError(f"{path} has more than {max_bytes} bytes; give another one")
        value = json.loads(content.decode())
    except ModelError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object; fetch it again")
    return value
