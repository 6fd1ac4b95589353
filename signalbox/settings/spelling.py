"""Suggests names close to an unknown one: "did you mean"."""

import difflib
from collections.abc import Iterable

_CLOSE = 0.7


def did_you_mean(name: str, known: Iterable[str], *, prefix: str = "") -> str:
    """Returns "; did you mean NAME?" for the closest known name, or nothing if none is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=_CLOSE)
    return f"; did you mean {prefix}{close[0]}?" if close else ""
