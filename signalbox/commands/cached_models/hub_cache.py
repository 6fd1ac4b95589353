"""Helpers of `signalbox pull`, `list` and `rm`, which never load PyTorch."""

import time

_AGES = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))


def age(since: float, *, now: float | None = None) -> str:
    """Returns the time since `since` in words; both are seconds since the epoch."""
    seconds = (time.time() if now is None else now) - since
    for length, unit in _AGES:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
