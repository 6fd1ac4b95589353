"""The outcome of a step for requests: their new tokens, and the sequences that ended."""

from dataclasses import dataclass, field

from contract.logprobs import TokenLogprobs
from scheduler_svc.requests.sequence import Sequence
from scheduler_svc.requests.sequence_group import SequenceGroup
from scheduler_svc.requests.suspicion import Suspicion

NewToken = tuple[Sequence, int, TokenLogprobs | None]
"""A token that was accepted: whose, which, and its log probabilities if they were asked for."""


@dataclass(slots=True)
class StepOutcome:
    """Outcome of one step for requests."""

    tokens: list[NewToken] = field(default_factory=list)
    prompt_logprobs: list[tuple[SequenceGroup, int, list[TokenLogprobs]]] = field(
        default_factory=list
    )
    """Group, position of the first token, and log probabilities from that position on."""
    finished: list[Sequence] = field(default_factory=list)
    """Sequences that have just ended; each has its reason."""
    ended: list[SequenceGroup] = field(default_factory=list)
    """Requests whose last sequence has just ended."""
    cleared: list[Suspicion] = field(default_factory=list)
    """Suspicions of requests that are suspects no longer."""
