"""Logits of the tokens that a request has drawn, kept in case it is audited."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class DrawnLogits:
    """Logits as the model gave them, and the workers that computed them."""

    by_branch: dict[int, list[float]] = field(default_factory=dict)
    """A logit for each output token of a branch, NaN if it is not known."""
    workers: list[str] = field(default_factory=list)
    """Addresses of the workers, in order."""

    def add(self, branch: int, logits: Sequence[float], *, num_known: int) -> None:
        """Adds the logits of a run of drawn tokens.

        Args:
            num_known: output tokens of the branch, with those of the run that were accepted.
        """
        known = self.by_branch.setdefault(branch, [])
        num_missing = max(0, num_known - len(known))
        known += [math.nan] * (num_missing - len(logits))
        known += logits[:num_missing]
