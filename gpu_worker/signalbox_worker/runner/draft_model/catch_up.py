"""How many tokens a draft model catches up in a step, so that it does not stall other sequences."""

_SHARE = 0.5
"""Time of catching up, as a share of the rest of a step."""
_LEAST_TOKENS = 16
_NEW = 0.25
"""Weight of the newest time in the mean."""


class CatchUpBudget:
    """Follows the times of steps, and those of the draft model's tokens. Times are of one clock."""

    def __init__(self, *, tokens_per_s: float, most_tokens: int) -> None:
        """Args: tokens_per_s: measured rate of the draft model, until steps have been measured."""
        self._ns_per_token = 1e9 / tokens_per_s
        self._most_tokens = most_tokens
        self._step_ns = 0.0
        self._ended_ns: int | None = None

    @property
    def tokens(self) -> int:
        affordable = int(_SHARE * self._step_ns / self._ns_per_token)
        return min(max(_LEAST_TOKENS, affordable), self._most_tokens)

    def begin_step(self, now_ns: int) -> None:
        """Measures what came since the last proposals: the rest of the step, or of several.

        A step counts at most twice as much as the one before: what is longer is likely a pause.
        """
        if self._ended_ns is None:
            return
        ns = now_ns - self._ended_ns
        self._step_ns = min(ns, 2 * self._step_ns) if self._step_ns else ns

    def end_step(self, now_ns: int) -> None:
        """Records that a step's proposals are made."""
        self._ended_ns = now_ns

    def observe(self, *, num_tokens: int, ns: int) -> None:
        """Records a batch of the draft model. Those of few tokens say nothing about more."""
        if num_tokens >= _LEAST_TOKENS:
            self._ns_per_token += _NEW * (ns / num_tokens - self._ns_per_token)
