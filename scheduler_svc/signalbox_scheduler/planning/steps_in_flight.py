"""The steps of one worker that are planned and not answered, and how long they take."""

import math
from collections import deque

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.plan import StepPlan


class StepsInFlight(deque[StepPlan]):
    """Their plans, oldest first; the worker executes them one after another."""

    def __init__(self, cost: CostModel) -> None:
        super().__init__()
        self.num_planned = 0
        """Steps so far, which is the id of the last."""
        self.last_planned_at = -math.inf
        self.last_is_alone = True
        """True if the last step was one of a suspect; the first turn is that of the others."""
        self._answered_at = 0.0
        self._cost = cost

    def new_plan(self, now: float, *, token_budget: int) -> StepPlan:
        """Returns an empty plan for the next step, which is not in flight yet."""
        return StepPlan(
            step_id=self.num_planned + 1,
            num_before=len(self),
            token_budget=token_budget,
            planned_at=now,
        )

    def add(self, plan: StepPlan) -> StepPlan:
        """Takes the filled plan of the next step, and returns it."""
        self.num_planned, self.last_planned_at = plan.step_id, plan.planned_at
        self.last_is_alone = plan.is_alone
        self.append(plan)
        return plan

    def pop_answered(self, result: StepResult, now: float) -> StepPlan:
        """Removes and returns the oldest plan, whose result it is."""
        plan = self.popleft()
        assert plan.step_id == result.step_id, "results come in the order of the steps"
        self._answered_at = now
        return plan

    @property
    def oldest_began_at(self) -> float:
        """Time when the oldest was planned, or when the one before it was answered if that is
        later."""
        return max(self[0].planned_at, self._answered_at)

    def expected_s(self) -> float:
        """Returns how long all take, as prompts do or as the last decodes did."""
        return sum(map(self._expected_s, self))

    def _expected_s(self, plan: StepPlan) -> float:
        num_tokens = plan.total_tokens
        if num_tokens > plan.num_decodes:
            return self._cost.recompute_s(num_tokens)
        return self._cost.last_decode_s if num_tokens else 0.0  # it asks for the ends of moves
