"""A trial and its verdict; both travel between processes as JSON."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import torch

from signalbox_worker.device.device_errors import is_device_lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A call of `function(device, **arguments)`, which returns a Verdict."""

    name: str
    """Name of the candidate, for the log."""
    function: str
    """Its import path, "package.module:function"."""
    arguments: Mapping[str, Any]
    """Values that JSON has."""
    limit_s: float = 300.0
    """Seconds after which the trial has failed; they include all that is compiled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a trial, which went well unless there is a refusal or a fault."""

    refusal: str | None = None
    """Reason why the candidate takes no such model, with the remedy."""
    fault: str | None = None
    """Description of the error; all that a compiler or a driver said, which may be many lines."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time of each piece of work, where the device has a clock."""

    is_lasting: bool = True
    """False for an error that is cheap to see again, and that may come of what is around: no
    compiler, no memory."""

    @property
    def is_good(self) -> bool:
        return self.refusal is None and self.fault is None


def judge(trial: Trial, device: torch.device) -> Verdict:
    """Makes the call here. An exception is a fault; its traceback goes to stderr."""
    module, _, name = trial.function.partition(":")
    try:
        verdict: Verdict = getattr(import_module(module), name)(device, **trial.arguments)
    except Exception as error:  # whatever a compiler or a driver raises
        traceback.print_exc()
        fault = f"{type(error).__name__}: {error}"
        return Verdict(fault=fault, is_lasting=is_device_lost(error))
    return verdict
