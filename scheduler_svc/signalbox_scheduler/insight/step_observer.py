"""The observer of a worker's steps, which its scheduler calls for each one that is answered.

The base class observes nothing. `service/reports/worker_frame_codec.py` has the one that watchers
need.
"""

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.planning.plan import StepPlan


class StepObserver:
    """Observes nothing."""

    def observe(self, plan: StepPlan, result: StepResult, now: float, *, seconds: float) -> None:
        """Takes a step that was answered now, and its duration."""


UNOBSERVED = StepObserver()
