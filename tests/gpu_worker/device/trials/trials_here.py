"""Makes trials in the test's own process, which has stand-ins that another process has not."""

import json
from collections.abc import Sequence
from dataclasses import asdict

import torch

from signalbox_worker.device.trials.trial import Trial, Verdict, judge


def run_here(trials: Sequence[Trial], device: torch.device) -> list[Verdict]:
    """Takes the place of `verdicts_of`."""
    sent = [json.dumps(asdict(trial)) for trial in trials]
    return [judge(Trial(**json.loads(line)), device) for line in sent]
