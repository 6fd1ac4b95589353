"""Content and times of requests: random prompts, with or without shared prefixes, and texts."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "number", "night", "point",
    "home", "water", "room", "mother", "area", "money", "story", "fact", "month", "lot", "right",
    "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head", "house",
    "service", "friend", "father", "power", "hour", "game", "line", "end", "member",
)  # fmt: skip
"""Words of about one token each, for endpoints that take no token ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One request; exactly one of prompt, messages and texts is set."""

    prompt: str | list[int] | None = None
    messages: tuple[tuple[str, str], ...] = ()
    """Role and text of each message."""
    texts: tuple[str, ...] = ()
    """Texts to embed."""
    sampling: dict[str, Any] = field(default_factory=dict)
    """Sampling parameters under the names that OpenAI and this server share, such as max_tokens."""
    at_s: float | None = None
    """Seconds from the start when the request is sent; None if the load decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthetic:
    """Requests of one size whose random content is in no cache."""

    num_requests: int
    prompt_tokens: int
    max_tokens: int
    shared_tokens: int = 0
    """Shared tokens at the beginning of each prompt, in addition to its own."""
    num_prefixes: int = 1
    """Number of different shared prefixes, used in turn."""
    vocab_size: int = 0
    """Size of the vocabulary; 0 sends words, for endpoints that take no token ids."""
    is_chat: bool = False
    ignore_eos: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_requests", "prompt_tokens", "max_tokens", "num_prefixes"):
            if getattr(self, name) < 1:
                flag = {"num_requests": "requests"}.get(name, name).replace("_", "-")
                raise ValueError(f"--{flag} is {getattr(self, name)}; it must be at least 1")
        if self.shared_tokens < 0:
            raise ValueError(f"--shared-tokens is {self.shared_tokens}; it cannot be negative")

    def asks(self) -> list[BenchRequest]:
        """Returns the same requests for the same seed."""
        rng = np.random.default_rng(self.seed)
        prefixes = [self._draw(rng, self.shared_tokens) for _ in range(self.num_prefixes)]
        bodies = (self._draw(rng, self.prompt_tokens) for _ in range(self.num_requests))
        return [self._ask(prefixes[i % self.num_prefixes] + body) for i, body in enumerate(bodies)]

    def _draw(self, rng: np.random.Generator, num_tokens: int) -> list[int]:
        return [int(one) for one in rng.integers(0, self.vocab_size or len(WORDS), num_tokens)]

    def _ask(self, drawn: list[int]) -> BenchRequest:
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": self.max_tokens}
        if self.ignore_eos:
            sampling["ignore_eos"] = True
        if self.vocab_size and not self.is_chat:
            return BenchRequest(prompt=drawn, sampling=sampling)
        text = " ".join(WORDS[one % len(WORDS)] for one in drawn)
        if self.is_chat:
            return BenchRequest(messages=(("user", text),), sampling=sampling)
        return BenchRequest(prompt=text, sampling=sampling)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticTexts:
    """Texts to embed, of random words: their lengths are spread evenly up to the longest."""

    num_requests: int
    max_words: int
    texts_per_request: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        flags = ("requests", self.num_requests), ("prompt-tokens", self.max_words)
        for flag, value in (*flags, ("texts", self.texts_per_request)):
            if value < 1:
                raise ValueError(f"--{flag} is {value}; it must be at least 1")

    def asks(self) -> list[BenchRequest]:
        """Returns the same requests for the same seed."""
        rng = np.random.default_rng(self.seed)
        return [self._ask(rng) for _ in range(self.num_requests)]

    def _ask(self, rng: np.random.Generator) -> BenchRequest:
        lengths = rng.integers(1, self.max_words, self.texts_per_request, endpoint=True)
        return BenchRequest(texts=tuple(" ".join(rng.choice(WORDS, length)) for length in lengths))


def poisson(rate: float, count: int, *, seed: int = 0) -> list[float]:
    """Returns the arrival times of `count` independent requests, `rate` a second on average."""
    if not 0 < rate < float("inf"):
        raise ValueError(f"--rate is {rate:g}; it must be a number of requests a second above 0")
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return [float(one) for one in np.cumsum(gaps) - gaps[0]]
