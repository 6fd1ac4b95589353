"""Divides what runs on a worker with pipeline stages among the steps in flight, by measured cost.

While one step passes through the stages, others must fill the stages behind it. All sequences in
one step would leave all stages but one idle; too many steps would read the weights too often. A
step is taken to cost a part that is fixed and a part for each token, which follow the answers.
"""

import math
from dataclasses import dataclass, field

_KEPT = 0.98
"""Weight of older steps, each time that a step is answered."""
_WORTH = 0.97
"""Share of the time that another division may take, to be preferred to one that is better in other
respects."""
_LEAST_CHUNK = 64
"""Tokens of a prompt below which products read weights for nothing."""
_FIRST_OVERHEAD_NS = 1e6


@dataclass(slots=True)
class MicrobatchPlanner:
    """Divides the sequences of one worker; with one stage nothing is divided."""

    num_stages: int
    is_used: bool = field(default=False, init=False)
    _overhead_ns: float = _FIRST_OVERHEAD_NS
    """Time from the end of a step to the begin of the next one with its sequences."""
    _steps: float = field(default=0.0, init=False)  # sums over the steps, older ones weigh less
    _tokens: float = field(default=0.0, init=False)
    _ns: float = field(default=0.0, init=False)
    _tokens_tokens: float = field(default=0.0, init=False)
    _tokens_ns: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.is_used = self.num_stages > 1

    def observe(self, *, num_tokens: int, forward_ns: int) -> None:
        """Takes the time that a step was computed, in all stages together."""
        if not (num_tokens and forward_ns):
            return
        self._steps = _KEPT * self._steps + 1
        self._tokens = _KEPT * self._tokens + num_tokens
        self._ns = _KEPT * self._ns + forward_ns
        self._tokens_tokens = _KEPT * self._tokens_tokens + num_tokens * num_tokens
        self._tokens_ns = _KEPT * self._tokens_ns + num_tokens * forward_ns

    def observe_alone(self, *, total_ns: float, forward_ns: int) -> None:
        """Takes the time from plan to answer of a step before which none was in flight."""
        if forward_ns:
            self._overhead_ns += (max(0.0, total_ns - forward_ns) - self._overhead_ns) / 8

    def most_decodes(self, *, num_decodes: int, num_ready: int, num_steps: int) -> int:
        """Returns how many of the sequences that are ready the next step takes.

        None, if there are enough steps: they go along when another one is answered.

        Args:
            num_decodes: sequences that decode.
            num_ready: those of them that no step holds.
            num_steps: steps in flight that hold the others.
        """
        if not self.is_used:
            return num_ready
        num_groups = self._num_groups(num_decodes)
        if num_steps >= num_groups:
            return 0
        return min(-(-num_decodes // num_groups), -(-num_ready // (num_groups - num_steps)))

    def most_prompt_tokens(self, num_tokens: int) -> int:
        """Returns how many tokens of prompts a step takes at most: chunks follow each other.

        The last of k chunks leaves the last stage after (stages - 1 + k) chunks' times.
        """
        if not self.is_used:
            return num_tokens
        fixed, of_token = self._cost()
        rest = (self.num_stages - 1) * of_token * num_tokens
        num_chunks = math.sqrt(rest / fixed) if fixed else math.inf
        return max(_LEAST_CHUNK, math.ceil(num_tokens / max(1.0, num_chunks)))

    def _num_groups(self, num_decodes: int) -> int:
        """Returns the number of steps among which decodes take the least time for a token each.

        A step more than stages waits before the first one while times vary, so it may take longer.
        """
        spare, exact = (max(1, min(self.num_stages + i, num_decodes)) for i in (1, 0))
        best = spare
        if self._round_ns(exact, num_decodes) < _WORTH * self._round_ns(spare, num_decodes):
            best = exact
        return (
            best
            if self._round_ns(best, num_decodes) < _WORTH * self._round_ns(1, num_decodes)
            else 1
        )

    def _round_ns(self, num_groups: int, num_decodes: int) -> float:
        """Returns the time in which each sequence gets a token."""
        fixed, of_token = self._cost()
        largest_ns = fixed + of_token * -(-num_decodes // num_groups)
        passing_ns = self.num_stages * largest_ns + self._overhead_ns
        return max(num_groups * fixed + of_token * num_decodes, passing_ns)

    def _cost(self) -> tuple[float, float]:
        """Returns the nanoseconds of a stage for a step, and for each of its tokens.

        Steps of one size do not tell the one from the other: then all is counted for tokens.
        """
        if not self._steps:
            return 0.0, 1.0
        spread = self._steps * self._tokens_tokens - self._tokens**2
        of_token = self._ns / self._tokens
        if spread > 1e-3 * self._tokens**2:
            slope = (self._steps * self._tokens_ns - self._tokens * self._ns) / spread
            of_token = min(max(0.0, slope), of_token)
        fixed = max(0.0, self._ns - of_token * self._tokens) / self._steps  # it is rounded
        return fixed / self.num_stages, of_token / self.num_stages
