"""Runs a command that ends with the process that has started it, however that ends.

`python -m signalbox.placement.tied_process PID COMMAND...`, where PID is of that process. Linux
sends the signal; elsewhere the command runs untied.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
