"""Entry point of the command; from its first line Ctrl-C ends it silently with status 130.

It is apart from `cli.py`, because importing that and the flags of a command takes long enough to be
interrupted. It sets a handler, because code that is being imported may swallow KeyboardInterrupt.
"""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs one command and returns its exit status."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise the parent process wants it ignored
        signal.signal(signal.SIGINT, _leave)
    # Before gRPC is imported, which else logs connections that peers close, in its own format.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from signalbox import cli

    options = cli.parse()
    signal.signal(signal.SIGINT, handler)
    return cli.run(options)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
