"""The interface of scheduling policies, which order waiting requests, and four of them.

Requests stand in flows, and in a flow by rank, the least first. Between flows the queue goes by
virtual time (start-time fair queueing, Goyal et al., SIGCOMM 1996), which `cost` moves on; a policy
of one flow is its ranks alone. Policies are pure: all state is the queue's, see fair_queue.py. One
of your own is chosen by its import path, `package.module:Class`, and may be as short as

    class PaidFirst(FirstComeFirstServed):
        def rank(self, group: SequenceGroup) -> float:
            return group.times.arrival + (0.0 if group.request.tenant in PAID else 30.0)

A request waits only for those of lower rank, so each request is served in the end if ranks stay
within a bound of the time of arrival.
"""

import importlib
from typing import Protocol

from signalbox_scheduler.config import PolicyName, PolicySettings
from signalbox_scheduler.requests.sequence_group import SequenceGroup

AGING_TOKENS = 1000
"""Tokens of a prompt that weigh as much as one step of priority."""
INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2
"""Cost under `fair` of a prompt token and of a generated one."""


class SchedulingPolicy(Protocol):
    """Methods that the queue calls for each request; if one raises, that request alone fails."""

    def flow(self, group: SequenceGroup) -> str:
        """Names the flow that a request stands in; asked once."""
        ...

    def rank(self, group: SequenceGroup) -> float:
        """Orders a flow, and all running groups: the group of the highest rank yields first.

        Asked once, when the request arrives; not NaN.
        """
        ...

    def cost(self, flow: str, *, num_prompt_tokens: int, num_output_tokens: int) -> float:
        """Says how far tokens that were served take a flow's virtual time; at least 0.

        Called for each flow that a step served, with the step's tokens; cached ones do not count.
        Not called if the policy inherits this method of FirstComeFirstServed, which costs nothing.
        """
        ...


class FirstComeFirstServed:
    """Serves requests in the order of arrival."""

    def flow(self, group: SequenceGroup) -> str:
        return ""

    def rank(self, group: SequenceGroup) -> float:
        return group.times.arrival

    def cost(self, flow: str, *, num_prompt_tokens: int, num_output_tokens: int) -> float:
        return 0.0


FCFS = FirstComeFirstServed()


class ByPriority(FirstComeFirstServed):
    """The least priority first, by arrival among equals.

    A request comes before those of the next priority that have waited for less than `aging_s`
    longer. As all requests age alike, the order of two requests never changes.
    """

    def __init__(self, *, aging_s: float) -> None:
        self._aging_s = aging_s

    def flow(self, group: SequenceGroup) -> str:
        return str(group.request.priority)

    def rank(self, group: SequenceGroup) -> float:
        return group.times.arrival + self._aging_s * group.request.priority


class ShortestPromptFirst(FirstComeFirstServed):
    """The shortest prompt first; `aging_s` of waiting makes up for 1,000 tokens."""

    def __init__(self, *, aging_s: float) -> None:
        self._s_per_token = aging_s / AGING_TOKENS

    def rank(self, group: SequenceGroup) -> float:
        return group.times.arrival + self._s_per_token * group.num_prompt_tokens


class Fair(FirstComeFirstServed):
    """Equal service to payers that wait: a virtual token counter each (Sheng et al., OSDI 2024).

    The next group to come in is of the payer that was served least. Running groups keep their
    place, by arrival.
    """

    def flow(self, group: SequenceGroup) -> str:
        return group.payer

    def cost(self, flow: str, *, num_prompt_tokens: int, num_output_tokens: int) -> float:
        return INPUT_WEIGHT * num_prompt_tokens + OUTPUT_WEIGHT * num_output_tokens


def make_policy(settings: PolicySettings) -> SchedulingPolicy:
    """Makes the policy of a name, or of an import path. Raises ValueError in one line."""
    match settings.scheduling_policy:
        case PolicyName.FCFS:
            return FCFS
        case PolicyName.PRIORITY:
            return ByPriority(aging_s=settings.priority_aging_s)
        case PolicyName.SHORTEST_PROMPT:
            return ShortestPromptFirst(aging_s=settings.priority_aging_s)
        case PolicyName.FAIR:
            return Fair()
    return _imported(settings.scheduling_policy)


def _imported(path: str) -> SchedulingPolicy:
    module_name, _, class_name = path.partition(":")
    try:
        made: SchedulingPolicy = getattr(importlib.import_module(module_name), class_name)()
    except Exception as error:  # whatever the module does when it is imported
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"scheduling_policy {path!r} cannot be used: {reason}") from error
    for method in ("flow", "rank", "cost"):
        if not callable(getattr(made, method, None)):
            raise ValueError(
                f"scheduling_policy {path!r} has no method {method}(); "
                "see signalbox_scheduler/queue/policies.py"
            )
    return made
