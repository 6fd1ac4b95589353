"""Entry point of the command; from its first line it acts on signals, and ends with its parent.

Ctrl-C ends it silently with status 130, SIGTERM a service that does not serve yet with status 0.
It is apart from `cli.py`, because importing that and the flags of a command takes long enough to be
interrupted. It sets handlers, because code that is being imported may swallow exceptions.
"""

import os
import signal
import sys
from types import FrameType

from signalbox.settings.services import SERVICES


def main() -> int:
    """Runs one command and returns its exit status."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # otherwise the parent process wants it ignored
        signal.signal(signal.SIGINT, _interrupt)
    if sys.argv[1:2] and sys.argv[1] in SERVICES:
        signal.signal(signal.SIGTERM, _stop)
    from signalbox_rpc.lifetime.parent import end_with_parent
    from signalbox_rpc.lifetime.stop_signals import take_stop_signals

    end_with_parent()
    take_stop_signals()
    # Before gRPC is imported, which else logs connections that peers close, in its own format.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from signalbox import cli

    options = cli.parse()
    signal.signal(signal.SIGINT, handler)
    return cli.run(options)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    os._exit(130)


def _stop(_number: int, _frame: FrameType | None) -> None:
    parent = sys.modules.get("signalbox_rpc.lifetime.parent")
    if parent is not None and hasattr(parent, "leave"):  # else nothing has made a folder yet
        parent.leave(0)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
