"""Where the command begins: from here on Ctrl-C ends it with status 130 and not a word.

Apart from `cli.py`, because importing that, and what a command's flags need, takes long enough to
be interrupted; and by a handler, because code that is being imported may swallow KeyboardInterrupt.
"""

import os
import signal
import sys
from types import FrameType


def main() -> int:
    """Runs one command and returns its exit status."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else whoever started us wants it ignored
        signal.signal(signal.SIGINT, _leave)
    from signalbox import cli

    options = cli.parse()
    signal.signal(signal.SIGINT, handler)
    return cli.run(options)


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
