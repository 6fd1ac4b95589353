"""The time that steps take to pass through simulated pipeline stages, one after another."""

import time
from itertools import accumulate
from typing import NamedTuple

from signalbox_contract.step_result import Stages, StageTimings
from signalbox_worker.batch.batch import BatchOutput


class StageTimes:
    """The time at which each stage is free again, in nanoseconds of any clock."""

    def __init__(self, shares: tuple[int, ...]) -> None:
        """Args: shares: of each stage in the time of a step."""
        self._ends = [0, *accumulate(shares)]
        self._free_at = [0] * len(shares)

    def enter(self, now_ns: int, duration_ns: int) -> tuple[int, Stages]:
        """Takes a step in behind those before it; returns when it leaves the last stage, and its
        times in each."""
        at, total, stages = now_ns, self._ends[-1], []
        for index, free_at in enumerate(self._free_at):
            first, last = self._ends[index], self._ends[index + 1]
            forward_ns = duration_ns * last // total - duration_ns * first // total
            stages.append(
                StageTimings(
                    queue_ns=max(0, free_at - at),
                    wait_ns=max(0, at - max(free_at, now_ns)),
                    forward_ns=forward_ns,
                )
            )
            at = max(at, free_at) + forward_ns
            self._free_at[index] = at
        return at, tuple(stages)


class SimulatedStep(NamedTuple):
    """A step in the stages; satisfies `Launched`."""

    output: BatchOutput
    ends_at_ns: int
    """The time of the monotonic clock."""

    @property
    def can_feed(self) -> bool:
        return False

    def wait(self) -> None:
        time.sleep(max(0, self.ends_at_ns - time.monotonic_ns()) / 1e9)

    def samples(self) -> BatchOutput:
        self.wait()
        return self.output
