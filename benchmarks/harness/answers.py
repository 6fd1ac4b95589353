"""What clients ask of a pool, and when they got the tokens of its answers."""

import itertools
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that a client sends."""

    prompt_tokens: int
    max_tokens: int


@dataclass(slots=True, eq=False)
class Answer:
    """Times at which a client got its tokens, in seconds."""

    asked: Asked
    sent_at: float
    token_times: list[float] = field(default_factory=list)
    failure: str = ""
    num_cached: int = 0
    """Tokens of its prompt that were found in the prefix cache."""

    @property
    def first_token_s(self) -> float:
        return self.token_times[0] - self.sent_at

    @property
    def gaps_s(self) -> list[float]:
        """Seconds between one token and the next."""
        return [later - earlier for earlier, later in itertools.pairwise(self.token_times)]

    def longest_gap_s(self, *, since: float) -> float:
        """Returns the longest time between tokens that ended at a time or later."""
        ends = self.token_times[1:]
        return max(gap for gap, end in zip(self.gaps_s, ends, strict=True) if end >= since)

    @property
    def per_token_s(self) -> float:
        """Mean seconds between tokens, as an objective of TPOT counts them."""
        times = self.token_times
        return (times[-1] - times[0]) / max(1, len(times) - 1)

    @property
    def is_whole(self) -> bool:
        return len(self.token_times) == self.asked.max_tokens
