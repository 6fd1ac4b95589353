"""Helpers of `signalbox pull`, `list` and `rm`; they need huggingface_hub, but not PyTorch."""

import time
from importlib.util import find_spec

_AGES = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"))


def require_hub() -> None:
    """Raises RuntimeError that names the extra to install if huggingface_hub is missing."""
    if find_spec("huggingface_hub") is None:
        raise RuntimeError(
            "models on the hub need huggingface_hub, which is not installed;"
            " pip install 'signalbox-serving[cpu]'"
        )


def age(since: float, *, now: float | None = None) -> str:
    """Returns the time since `since` in words; both are seconds since the epoch."""
    seconds = (time.time() if now is None else now) - since
    for length, unit in _AGES:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
