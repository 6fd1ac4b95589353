"""Accounts for the time of a worker's pipeline stages, once for all its requests.

Each step adds to the account. What the stages did while a request was there is the difference
between the account at its end and the account when the worker took the request, so that a step
costs the same however many requests it has.
"""

from dataclasses import dataclass
from typing import NamedTuple

from signalbox_contract.model import WorkerRank
from signalbox_contract.step_result import Stages, sum_stages


class StageUse(NamedTuple):
    """Work of a worker's stages in some time."""

    ranks: tuple[WorkerRank, ...]
    stages: Stages
    """Sums by stage."""
    num_steps: int
    in_flight_ns: int
    """Part of the time with a step in flight."""

    def since(self, earlier: "StageUse") -> "StageUse":
        stages = self.stages
        if earlier.stages:
            pairs = zip(self.stages, earlier.stages, strict=True)
            stages = tuple(now.minus(then) for now, then in pairs)
        return StageUse(
            self.ranks,
            stages,
            self.num_steps - earlier.num_steps,
            self.in_flight_ns - earlier.in_flight_ns,
        )


@dataclass(slots=True, eq=False)
class StageAccount:
    """The account of one worker since it joined."""

    ranks: tuple[WorkerRank, ...] = ()
    """Empty for a worker of one rank, which has no account."""
    stages: Stages = ()
    num_steps: int = 0
    in_flight_ns: int = 0

    def add(self, stages: Stages, *, in_flight_ns: int) -> None:
        """Adds a step; a no-op for a worker of one rank."""
        if not self.ranks:
            return
        self.stages = sum_stages(self.stages, stages)
        self.num_steps += 1
        self.in_flight_ns += in_flight_ns

    def use(self) -> StageUse:
        return StageUse(self.ranks, self.stages, self.num_steps, self.in_flight_ns)


NO_STAGES = StageAccount()
"""The account of no worker."""
