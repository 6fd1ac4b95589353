"""The process that makes trials, on the device that its argument names.

It reads a trial a line from stdin and answers with a verdict a line; the first answer, before any
trial, says whether it can use the device. What code under trial prints goes to stderr, by whatever
name. It ends when its input does, and with the process that started it
(`signalbox_rpc.lifetime.parent`).
"""

import json
import os
import sys
import threading
from dataclasses import asdict
from queue import SimpleQueue
from typing import TextIO

import torch

from signalbox_worker.device.trials.trial import Trial, Verdict, judge

_OPENING = "signalbox_worker.device.trials.trial_process:open_device"


def main() -> None:
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    trials: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(trials,), daemon=True).start()
    device = torch.device(sys.argv[1])
    opening = Trial(
        name="device",
        function="signalbox_worker.device.trials.trial_process:open_device",
        arguments={},
    )
    _answer(judge(opening, device), answers)
    while True:
        _answer(judge(Trial(**json.loads(trials.get())), device), answers)


def _read(trials: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        trials.put(line)
    os._exit(0)


def _answer(verdict: Verdict, answers: TextIO) -> None:
    print(json.dumps(asdict(verdict)), file=answers, flush=True)


def open_device(device: torch.device) -> Verdict:
    """Makes the device the process's current one, as in a worker, and computes there."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.zeros(1, device=device).item()
    return Verdict()
