"""Frees what an exception keeps once it has been handled.

An exception keeps the variables of each function that it came through. One of them is often the
task or the call that keeps the exception, a cycle, which would hold a connection, or the state of a
worker, until a full collection: minutes, in a service that makes little garbage.
"""

import traceback


def release_frames(error: BaseException | None) -> None:
    """Clears the variables of the functions that an exception has left, and that of its causes."""
    while error is not None and error.__traceback__ is not None:  # causes may be a cycle
        traceback.clear_frames(error.__traceback__)
        error.__traceback__ = None
        error = error.__cause__ or error.__context__
