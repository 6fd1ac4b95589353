"""Measurements of the answers to many requests, and their percentiles."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class TokenArrival(NamedTuple):
    """Tokens that arrived together."""

    at_s: float
    """Time of arrival on the clock of time.perf_counter, in seconds."""
    num_tokens: int


@dataclass(slots=True)
class Measured:
    """One run of a load; times in seconds."""

    duration_s: float = 0.0
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_texts: int = 0
    """Texts whose vectors came."""
    first_token_s: list[float] = field(default_factory=list)
    between_tokens_s: list[float] = field(default_factory=list)
    whole_s: list[float] = field(default_factory=list)
    """Duration of each request that succeeded."""
    arrivals: list[TokenArrival] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    """Number of failed requests by reason."""
    messages: dict[str, str] = field(default_factory=dict)
    """Message of the first failed request of each reason; may be empty."""
    num_unfinished: int = 0
    """Requests that were running or not sent yet when the run was interrupted."""

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.duration_s

    @property
    def num_completed(self) -> int:
        return len(self.whole_s)

    @property
    def num_failed(self) -> int:
        return sum(self.failures.values())


async def observe(
    answer: AsyncIterator[int], measured: Measured, *, due: float | None = None
) -> int:
    """Reads the tokens of each message and adds their times; returns the number of tokens.

    Args:
        due: time.perf_counter when the request should have been sent. Measuring from the actual
            sending would leave out the time that a busy sender delayed the request.
    """
    last = start = time.perf_counter() if due is None else due
    num_tokens = 0
    try:
        async for new_tokens in answer:
            now = time.perf_counter()
            if not new_tokens:
                continue
            if not num_tokens:
                measured.first_token_s.append(now - start)
            else:
                measured.between_tokens_s += [(now - last) / new_tokens] * new_tokens
            measured.arrivals.append(TokenArrival(now, new_tokens))
            num_tokens += new_tokens
            last = now
    except asyncio.CancelledError:  # the run is over, and these tokens belong to it
        measured.num_tokens += num_tokens
        raise
    measured.num_tokens += num_tokens
    measured.whole_s.append(time.perf_counter() - start)
    return num_tokens


def percentile_ms(values_s: list[float], percentile: float) -> float:
    """Returns a percentile of times in seconds, in milliseconds."""
    return float(np.percentile(values_s, percentile)) * 1e3 if values_s else float("nan")


def tokens_by_time(measured: Measured, *, num_bins: int) -> list[float]:
    """Returns tokens per second in equal parts of the time from the first token to the last."""
    if len(measured.arrivals) < 2:
        return []
    at_s = np.array([arrival.at_s for arrival in measured.arrivals])
    counts = [arrival.num_tokens for arrival in measured.arrivals]
    sums, edges = np.histogram(at_s, bins=num_bins, weights=counts)
    width_s = max(float(edges[1] - edges[0]), 1e-9)
    return [float(value) / width_s for value in sums]
