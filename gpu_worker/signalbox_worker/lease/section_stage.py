"""The interface of the stages of a lease: each owns one section of a step.

The lease calls its stages for the steps of which `Step.has_sections` is true.
"""

from typing import Protocol

from signalbox_contract.step import Step


class SectionStage(Protocol):
    """Checks and applies a section, before the step computes anything."""

    def check(self, step: Step) -> None:
        """Raises RpcError, having changed nothing, if the section is not allowed."""
        ...

    def apply(self, step: Step) -> int:
        """Applies the section if the step has it; an error ends the lease.

        Returns the nanoseconds that this takes, beside the forward pass or not.
        """
        ...
