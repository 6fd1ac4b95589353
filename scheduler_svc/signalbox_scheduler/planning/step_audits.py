"""Interface through which a worker's idle steps audit earlier answers.

The scheduler calls these hooks. This base class audits nothing: a scheduler whose audits are off
keeps it. See signalbox_scheduler/audits/.
"""

import math

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.planning.plan import StepPlan


class StepAudits:
    """Audits nothing."""

    next_poll_at: float = math.inf
    """Time at which `fill` may find work though nothing wakes the driver; infinite if none may."""

    def begin_step(self) -> None:
        """Gives up the blocks of an audit that requests may need in the step to be planned."""

    def fill(self, plan: StepPlan, now: float) -> None:
        """Gives an empty plan the next part of an audit, if the worker has nothing else to do."""

    def record(self, plan: StepPlan, result: StepResult) -> None:
        """Keeps the logits of requests that may be audited, once their tokens are accepted."""

    def compare(self, plan: StepPlan, result: StepResult, now: float, *, seconds: float) -> None:
        """Compares what a step of an audit has drawn with the answer."""

    def drop(self) -> None:
        """Ends the audit under way, whose worker is for other things from now on."""

    def close(self) -> None:
        """Gives up the blocks of the audit under way: the worker is gone."""

    def check(self) -> None:
        """Asserts its invariants."""
