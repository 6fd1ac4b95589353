"""Names the parts of a step, for the profile that is being taken, if there is one."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

Recorder = Callable[[str], AbstractContextManager[object]]
"""Returns a context whose work a profile shows under a name."""

_NOTHING = nullcontext()
_recorders: list[Recorder] = []


def span(name: str) -> AbstractContextManager[object]:
    """Returns a context whose work appears under a name in a profile; it costs nothing without
    one."""
    return _recorders[-1](name) if _recorders else _NOTHING


def begin(recorder: Recorder) -> None:
    """Passes the spans from now on to a recorder."""
    _recorders.append(recorder)


def end(recorder: Recorder) -> None:
    """Ends `begin`."""
    _recorders.remove(recorder)
