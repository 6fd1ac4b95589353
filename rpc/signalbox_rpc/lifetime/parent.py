"""Ends a process with the process that started it, however that ends and whatever this one does.

A thread watches the parent. It is started before anything else is imported, and it watches the
process, not the thread that has started this one. `python -m signalbox_rpc.lifetime.parent MODULE
ARGUMENTS` runs `main` of a module so.
"""

import os
import select
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

from signalbox_rpc.lifetime import private_folder

PARENT_PID = "SIGNALBOX_PARENT_PID"
"""Variable that makes a process end with its parent, which has this process id."""

_LOOK_S = 0.2
_CLOSING_MS = 2_000
"""Milliseconds for a parent that is ending to close its files. Linux hands its children on while
the last of its threads, which may have gigabytes to free, still holds them."""
_THREAD = "end of parent"


def end_with_parent() -> None:
    """Makes this process end with its parent if that has asked for it."""
    parent_pid = int(os.environ.pop(PARENT_PID, "0"))
    if parent_pid:
        threading.Thread(target=_watch, args=(parent_pid,), name=_THREAD, daemon=True).start()


def is_watched() -> bool:
    """Returns whether a thread of this process watches its parent."""
    return any(thread.name == _THREAD for thread in threading.enumerate())


def leave(status: int) -> None:
    """Ends this process at once, and leaves no folder."""
    private_folder.close_all()
    os._exit(status)


def _watch(parent_pid: int) -> None:
    ended = select.poll()
    if hasattr(os, "pidfd_open"):  # Python may have been built without it, on Linux too
        with suppress(OSError):  # a sandbox may forbid it
            ended.register(os.pidfd_open(parent_pid), select.POLLIN)
            if os.getppid() == parent_pid:  # else the id may be another's by now
                ended.poll()
    while os.getppid() == parent_pid:
        time.sleep(_LOOK_S)
    ended.poll(_CLOSING_MS)  # returns once it has ended
    try:
        private_folder.remove_leftovers()  # the parent's
    finally:
        leave(1)


def main() -> None:
    """Runs the module that the command line names."""
    end_with_parent()
    import_module(sys.argv.pop(1)).main()


if __name__ == "__main__":
    main()
