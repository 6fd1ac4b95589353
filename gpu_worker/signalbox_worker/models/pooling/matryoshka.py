"""Reads the sizes to which a model's embeddings may be cut (Kusupati et al., 2022)."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.hub.hub_model import CARD

_MAX_CARD_BYTES = 4 << 20
_LOSS = re.compile(rb'"matryoshka_dims":\s*\[([\d\s,]{1,400})\]')
"""A parameter of the loss, in the JSON of a card that sentence-transformers' trainer wrote."""


def matryoshka_dimensions(
    config: Mapping[str, Any], root: Path | None, num_outputs: int
) -> tuple[int, ...]:
    """Returns the sizes that config.json names, or else the model's card; empty if none does.

    Args:
        root: folder of the model.
        num_outputs: elements of a whole embedding; with `is_matryoshka` alone, all are served.
    """
    named = config.get("matryoshka_dimensions")
    if named is None and config.get("is_matryoshka"):
        return tuple(range(1, num_outputs + 1))
    if named is None:
        named = _trained(root / CARD) if root is not None else []
    if not isinstance(named, list) or not all(type(one) is int and one > 0 for one in named):
        raise ModelError(f"config.json says matryoshka_dimensions = {str(named)[:40]}")
    return tuple(sorted({one for one in named if one <= num_outputs}))


def _trained(card: Path) -> list[int]:
    """Returns the sizes that a model was trained for, by its card."""
    if not card.is_file():
        return []
    with card.open("rb") as file:
        found = _LOSS.findall(file.read(_MAX_CARD_BYTES))
    sizes = [int(one) for sizes in found for one in sizes.split(b",") if one.strip()]
    return [one for one in sizes if one > 0]
