"""What trials of the tests call, in a process that imports this module by its name."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from signalbox_worker.device.trials.trial import Verdict


def say_process(device: torch.device, *, path: str) -> Verdict:
    """Adds a line with the process's number to a file."""
    with Path(path).open("a") as file:
        print(os.getpid(), str(device), file=file)
    return Verdict(seconds={"decode": 0.5})


def hang(device: torch.device, *, path: str = "") -> Verdict:
    if path:
        compiler = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        Path(path).write_text(str(compiler.pid))
    time.sleep(1000)
    return Verdict()


def abort(device: torch.device) -> Verdict:
    os.system("echo said by a compiler; echo and on stderr >&2")
    os.abort()


def read_address_0(device: torch.device) -> Verdict:
    ctypes.string_at(0)
    return Verdict()


def leave(device: torch.device) -> Verdict:
    os._exit(3)


def be_killed(device: torch.device) -> Verdict:
    os.kill(os.getpid(), signal.SIGKILL)
    return Verdict()


def fail(device: torch.device, *, error: str) -> Verdict:
    raise RuntimeError(error)
