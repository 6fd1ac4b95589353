"""Chooses the LoRA adapters of a step where more of them run than a step may have: in turns.

Groups of the others keep their blocks and sit the step out. Those that computed longest ago come
first, so an adapter that runs waits for at most as many steps as all of them need.
"""

from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.sequence_group import SequenceGroup

_MAX_KEPT = 4096


class AdapterTurns:
    """One worker's turns. The base model is in each step."""

    def __init__(self, queues: GroupQueues, most: int | None) -> None:
        """`most` adapters may be in a step; None is all."""
        self._queues = queues
        self._most = most
        self._last_steps: dict[str, int] = {}  # in which each was chosen, also of those that left

    def begin(self, plan: StepPlan) -> bool:
        """Chooses among the adapters that run; returns whether some must sit the step out."""
        if self._most is None:
            return False
        groups = (
            group
            for group in self._queues.running
            if group.suspicion is None and not group.is_paused
        )
        adapters = dict.fromkeys(filter(None, (group.request.adapter for group in groups)))
        in_turn = sorted(adapters, key=lambda one: self._last_steps.get(one, 0))
        plan.adapters = set()
        for one in in_turn[: self._most]:
            self._add(plan, one)
        return len(in_turn) > self._most

    def admits(self, plan: StepPlan, group: SequenceGroup) -> bool:
        """Returns whether a group that comes to run may compute at once; else it has a turn."""
        adapter = group.request.adapter
        if plan.adapters is None or not adapter or adapter in plan.adapters:
            return True
        if len(plan.adapters) == self._most:
            return False
        self._add(plan, adapter)
        return True

    def _add(self, plan: StepPlan, adapter: str) -> None:
        assert plan.adapters is not None
        plan.adapters.add(adapter)
        self._last_steps.pop(adapter, None)
        self._last_steps[adapter] = plan.step_id  # the last that were chosen are the last here
        if len(self._last_steps) > _MAX_KEPT:
            del self._last_steps[next(iter(self._last_steps))]
