"""Counts the time that masks of one request's output take, for planning/mask_turns.py."""

from collections.abc import Iterator
from dataclasses import dataclass

from signalbox_rpc.metrics.sample import Sample, counter


@dataclass(slots=True, kw_only=True)
class MaskUse:
    """Costs of one group's masks. They stay with the group when it is preempted or moves."""

    mean_ns: float = 0.0
    """CPU time of a mask of one of its sequences, of the last few steps."""
    charged_ns: float = 0.0
    """CPU time of its masks that counts when turns are given."""
    num_sat_out: int = 0

    def samples(self) -> Iterator[Sample]:
        if self.num_sat_out:
            yield counter(
                "num_steps_sat_out",
                "Steps that it sat out, since the masks of its structured output are dear.",
                self.num_sat_out,
            )
