"""Limits the missing tokens that a draft model computes in a step, so that others do not wait."""

_SHARE = 0.5
"""Most time for missing tokens, as a share of the rest of a step."""
_LEAST_TOKENS = 16
_NEW = 0.25
"""Weight of the newest time in the mean."""


class CatchUpBudget:
    """Tracks the times of steps, and of tokens of the draft model."""

    def __init__(self, *, tokens_per_s: float, most_tokens: int) -> None:
        """Args: tokens_per_s: rate of the draft model that was measured at its start."""
        self._ns_per_token = 1e9 / tokens_per_s
        self._most_tokens = most_tokens
        self._step_ns = 0.0
        self._ended_ns: int | None = None

    @property
    def tokens(self) -> int:
        affordable = int(_SHARE * self._step_ns / self._ns_per_token)
        return min(max(_LEAST_TOKENS, affordable), self._most_tokens)

    def begin_step(self, now_ns: int) -> None:
        """Measures the time since the last proposals, which is that of the rest of the step.

        It counts at most twice the time before: a longer one is likely a pause.
        """
        if self._ended_ns is None:
            return
        ns = now_ns - self._ended_ns
        self._step_ns = min(ns, 2 * self._step_ns) if self._step_ns else ns

    def end_step(self, now_ns: int) -> None:
        """Records that a step's proposals are made."""
        self._ended_ns = now_ns

    def observe(self, *, num_tokens: int, ns: int) -> None:
        """Records a batch of the draft model. Small ones do not show the time of a large one."""
        if num_tokens >= _LEAST_TOKENS:
            self._ns_per_token += _NEW * (ns / num_tokens - self._ns_per_token)
