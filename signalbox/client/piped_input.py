"""Reads what is piped to a command, beside the message that its arguments give."""

import os
import stat
import sys
import threading

NOTICE_AFTER_S = 1.0
_NOTICE = "waiting for the end of standard input: Ctrl-D, or </dev/null for none"


def with_piped(message: str | None) -> str | None:
    """Returns what is piped and then the message; None on a terminal if there is no message.

    Without a message, standard input is read whatever it is.
    """
    if message is None and sys.stdin is not None and sys.stdin.isatty():
        return None
    piped = read_input().strip() if message is None or _is_piped() else ""
    return "\n\n".join(part for part in (piped, message) if part)


def read_input() -> str:
    """Returns all of standard input; a line on standard error says so if that takes a while.

    Ctrl-C ends it only outside of asyncio, whose handler of the signal would not be noticed.
    """
    if sys.stdin is None:  # it is closed
        return ""
    notice = threading.Timer(NOTICE_AFTER_S, print, (_NOTICE,), {"file": sys.stderr, "flush": True})
    notice.daemon = True
    notice.start()
    try:
        return sys.stdin.read()
    finally:
        notice.cancel()


def _is_piped() -> bool:
    """Returns whether standard input is a pipe or a file, not a terminal or /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):  # closed, or an object without a descriptor
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
