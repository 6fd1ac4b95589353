"""The loads of the comparison: what is asked of every participant in the same round.

Few requests and many rounds: machines drift, and a ratio of two that ran within minutes of each
other is worth more than a long run.

Every load of every round has prompts of its own, drawn from the round and the load's name, of which
no two begin with the same token: no server finds anything of them in a prefix cache. All
participants of a round get the same token ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import sha256
from itertools import islice
from typing import Self

from benchmarks.harness.prompts import random_prompts


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

    @property
    def may_find(self) -> bool:
        """True if it measures what is found in a prefix cache; beams have one prompt in common."""
        return self.shared_tokens > 0 or self.beam_width > 1

    def draw(self, num_tokens: int, round_number: int) -> Iterator[list[int]]:
        """Yields token ids of a round for ever."""
        seed = int.from_bytes(sha256(f"{round_number} {self.name}".encode()).digest()[:8])
        return random_prompts(vocab_size=self.vocab_size, num_tokens=num_tokens, seed=seed)

    def warm_up(self) -> Self:
        """Returns a small one of the same kind."""
        name = f"warm-up of {self.name}"
        return replace(self, name=name, concurrency=2, num_requests=2, max_tokens=16)

    def repeated(self, waves: int) -> Self:
        """Returns the same with as many times the requests; offline, all are at once anyway."""
        if self.kind is Kind.OFFLINE:
            return self
        return replace(self, num_requests=self.num_requests * waves)

    def of_lengths(self, prompt_tokens: int, max_tokens: int) -> Self:
        """Returns the same with other lengths, if it is one of streams."""
        if self.kind is not Kind.STREAM:
            return self
        title = f"{self.title.partition(',')[0]}, {prompt_tokens} + {max_tokens}"
        return replace(self, title=title, prompt_tokens=prompt_tokens, max_tokens=max_tokens)

    def shrunk(self, factor: int) -> Self:
        """Returns the same with shorter prompts and answers, to see that everything works."""
        return replace(
            self,
            title=self.title if factor == 1 else f"{self.title}, all divided by {factor}",
            prompt_tokens=max(4, self.prompt_tokens // factor),
            max_tokens=max(4, self.max_tokens // factor),
            shared_tokens=self.shared_tokens // factor,
        )


@dataclass(slots=True)
class Prompts:
    """The prompts of a run, the same for every participant of a round."""

    _drawn: dict[tuple[int, str], list[list[int]]] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    """First tokens of all prompts so far."""

    def of(self, load: Load, round_number: int) -> list[list[int]]:
        """Returns those of a load; none begins like one of another load or round."""
        key = round_number, load.name
        if key not in self._drawn:
            if len(self._begun) + load.num_requests > load.vocab_size // 2:
                raise ValueError(f"{load.vocab_size} tokens are too few to begin each prompt with")
            self._drawn[key] = list(islice(self._new(load, round_number), load.num_requests))
            self._begun |= {prompt[0] for prompt in self._drawn[key]}
        return self._drawn[key]

    def _new(self, load: Load, round_number: int) -> Iterator[list[int]]:
        shared = self._unlike(load.draw(load.shared_tokens, round_number), self._begun)
        prefix, begun = next(shared) if load.shared_tokens else [], set(self._begun)
        for own in self._unlike(load.draw(load.prompt_tokens, round_number), begun):
            begun.add(own[0])
            yield prefix + own

    @staticmethod
    def _unlike(drawn: Iterator[list[int]], begun: set[int]) -> Iterator[list[int]]:
        return (tokens for tokens in drawn if tokens[0] not in begun)


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
        for count in (512, 2048, 4096, 8064)  # the demo model's context is 8,192
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
