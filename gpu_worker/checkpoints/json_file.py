"""Reads the JSON files of a model or of an adapter."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_worker.config import ModelError


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON object; names the file if that fails."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch it again") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object; fetch it again")
    return value
