"""Counts the time that masks of one request's output take, for planning/mask_turns.py."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class MaskUse:
    """Costs of one group's masks. They stay with the group when it is preempted or moves."""

    mean_ns: float = 0.0
    """CPU time of a mask of one of its sequences, of the last few steps."""
    charged_ns: float = 0.0
    """CPU time of its masks that counts when turns are given."""
    num_sat_out: int = 0
    """Steps that it sat out because its masks are dear."""
