"""The loads of the comparison: what is asked of every participant in the same round.

Few requests and many rounds: machines drift, and a ratio of two that ran within minutes of each
other is worth more than a long run.

Every round has prompts of its own, so that a server that was frozen since the round before finds
nothing of them in its prefix cache; within a round all participants get the same token ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from typing import Self

from signalbox.bench.workload import random_prompts


class Kind(Enum):
    """Method by which a load is put on a participant."""

    STREAM = "served"
    PREFILL = "served, long prompts"
    BEAM = "beam search"
    OFFLINE = "offline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many requests of random token ids, `concurrency` at a time (offline: all at once)."""

    name: str
    title: str
    kind: Kind = Kind.STREAM
    concurrency: int
    num_requests: int
    prompt_tokens: int = 128
    max_tokens: int = 128
    shared_tokens: int = 0
    """Tokens before each prompt's own, the same in all."""
    beam_width: int = 1
    vocab_size: int = 32_000
    """Token ids that any model has."""

    def prompts(self, seed: int) -> list[list[int]]:
        """Returns the prompts of a round."""
        shared = self._random(self.shared_tokens, seed)
        own = self._random(self.prompt_tokens, seed + 1)
        prefix = next(shared)
        return [prefix + prompt for prompt in islice(own, self.num_requests)]

    def _random(self, num_tokens: int, seed: int) -> Iterator[list[int]]:
        return random_prompts(vocab_size=self.vocab_size, num_tokens=num_tokens, seed=seed)

    def warm_up(self) -> Self:
        """Returns a small one of the same kind."""
        return replace(self, name="warm-up", concurrency=2, num_requests=2, max_tokens=16)

    def repeated(self, waves: int) -> Self:
        """Returns the same with as many times the requests; offline, all are at once anyway."""
        if self.kind is Kind.OFFLINE:
            return self
        return replace(self, num_requests=self.num_requests * waves)

    def shrunk(self, factor: int) -> Self:
        """Returns the same with shorter prompts and answers, to see that everything works."""
        return replace(
            self,
            title=self.title if factor == 1 else f"{self.title}, all divided by {factor}",
            prompt_tokens=max(4, self.prompt_tokens // factor),
            max_tokens=max(4, self.max_tokens // factor),
            shared_tokens=self.shared_tokens // factor,
        )


LOADS = [
    Load(name="1", title="1 client, 128 + 128", concurrency=1, num_requests=2),
    Load(name="8", title="8 clients, 128 + 128", concurrency=8, num_requests=8),
    Load(name="32", title="32 clients, 128 + 128", concurrency=32, num_requests=32),
    Load(
        name="long",
        title="long prompts, 1 client, 2,048 + 64",
        kind=Kind.PREFILL,
        concurrency=1,
        num_requests=2,
        prompt_tokens=2048,
        max_tokens=64,
    ),
    *(
        Load(
            name=f"prefill-{count}",
            title=f"prefill alone, 1 client, {count:,} + 4",
            kind=Kind.PREFILL,
            concurrency=1,
            num_requests=1,
            prompt_tokens=count,
            max_tokens=4,
        )
        for count in (2048, 8064)  # the demo model's context is 8,192
    ),
    Load(
        name="shared",
        title="shared prefix, 1,024 + 32 + 32, 64 requests of 32 clients",
        kind=Kind.PREFILL,
        concurrency=32,
        num_requests=64,
        prompt_tokens=32,
        max_tokens=32,
        shared_tokens=1024,
    ),
    Load(
        name="beam",
        title="beam search of width 4, 4 clients, 128 + 64",
        kind=Kind.BEAM,
        concurrency=4,
        num_requests=4,
        max_tokens=64,
        beam_width=4,
    ),
    *(
        Load(
            name=f"offline-{count}",
            title=f"{count} prompts at once, 128 + 128",
            kind=Kind.OFFLINE,
            concurrency=count,
            num_requests=count,
        )
        for count in (1, 8, 32)
    ),
]
BY_NAME = {load.name: load for load in LOADS}
