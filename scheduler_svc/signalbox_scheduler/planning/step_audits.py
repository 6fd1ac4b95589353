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
        """Frees the blocks of an audit if requests may need them in the step to be planned."""

    def fill(self, plan: StepPlan, now: float) -> None:
        """Adds the next part of an audit to a plan, if the worker has nothing else to do."""

    def record(self, plan: StepPlan, result: StepResult) -> None:
        """Keeps the logits of requests that may be audited, once their tokens are accepted."""

    def compare(self, plan: StepPlan, result: StepResult, now: float, *, seconds: float) -> None:
        """Compares what a step of an audit has drawn with the answer."""

    def drop(self) -> None:
        """Ends the audit under way, since the worker drains, is cleared or has another role."""

    def close(self) -> None:
        """Ends the audit under way and frees its blocks, since the worker is gone."""

    def check(self) -> None:
        """Asserts its invariants."""
