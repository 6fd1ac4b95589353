"""Types of worker.v1 as the worker's core has them: one step, and its result.

`codec.py` makes a `Step` of the wire's message; see `batch` for what a runner computes. Arrays
are NumPy.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contract.logprobs import PromptLogprobs, TokenLogprobs

Int32Array = NDArray[np.int32]
Int64Array = NDArray[np.int64]


class Logprobs(NamedTuple):
    """Log probabilities of one row, of the model's own logits."""

    row: int
    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]

    @property
    def values(self) -> TokenLogprobs:
        return TokenLogprobs(*self[1:])


NONE_LEFT = "every token is suppressed"
"""By what the request asks for."""
STRUCTURED_OUTPUT = "its structured output"
"""Begins what is said of a sequence that its constraint ends."""


class SequenceFailure(NamedTuple):
    """One sequence's error; the rest of the step is unharmed."""

    seq_id: int
    message: str

    @property
    def is_refusal(self) -> bool:
        """Whether the request is the cause, and not the computation."""
        return self.message == NONE_LEFT or self.message.startswith(STRUCTURED_OUTPUT)


@dataclass(slots=True, kw_only=True)
class StepResult:
    """One ExecuteModelResponse before encoding."""

    epoch: int
    step_id: int
    seq_ids: Int64Array
    token_ids: Int32Array
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By row."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failures: list[SequenceFailure] = field(default_factory=list)
    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0
    max_num_batched_tokens: int | None = None
    """Of the steps to come, where memory suffices for less than was announced."""
