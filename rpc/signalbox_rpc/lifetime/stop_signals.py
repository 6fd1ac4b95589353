"""The signals that ask a process to stop, while it cannot act on them yet.

A process inherits those that are blocked: one that starts another lets them wait until the other
has set its handlers, and calls `take_stop_signals`.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def stopping_later() -> Iterator[None]:
    """Lets SIGINT and SIGTERM wait until the block ends, or in a process that is started in it."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def take_stop_signals() -> None:
    """Takes the signals that have waited, and those to come."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
