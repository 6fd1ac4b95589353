"""Beam search over token ids: which hypotheses are followed, which have ended, what is settled.

Pure: the caller reports the likeliest next tokens of every beam, and reads which beam goes on with
which token. Scores, their rounding and the end of the search are those of transformers'
`generate(num_beams=...)`: sums and quotients in float32, `width` best continuations that do not
end, and those among the `width` best overall that do. Ties go to the earlier beam, then to the
lower token id.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from signalbox_contract.request import BEAM_LIMITS, NOT_WITH_BEAMS, BeamSearchParams, Request
from signalbox_contract.sampling_params import SamplingParams

MAX_CANDIDATES = 128
"""Tokens that a beam reports at most."""
_NEUTRAL = SamplingParams()


class Candidates(NamedTuple):
    """The likeliest next tokens of one beam, the likeliest first."""

    token_ids: Sequence[int]
    logprobs: Sequence[float]


class Draw(NamedTuple):
    """Report of a worker at the end of a beam. The worker computes the drawn token next."""

    token_id: int
    candidates: Candidates


class Choice(NamedTuple):
    """The log probability of a token of a hypothesis, and how many were as likely."""

    logprob: float
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Tokens after the prompt, and how likely they are together."""

    token_ids: list[int] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    """One for each token."""
    total: float = 0.0
    """Sum of the log probabilities, a float32."""
    parent: int = 0
    """Index of the beam that it continues, before the search advanced."""
    score: float = -math.inf
    """Total over length to the power of length_penalty; of a hypothesis that has ended."""


class BeamSearch:
    """The hypotheses of one request.

    `live` are followed, the likeliest first; `finished` have ended, the best score first, and are
    no more than `width`. The search begins with one beam, which stands for all.
    """

    def __init__(
        self,
        params: BeamSearchParams,
        *,
        stop_token_ids: Sequence[int] = (),
        min_tokens: int = 0,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self.params = params
        self.live = [Hypothesis()]
        self.finished: list[Hypothesis] = []
        self.is_done = False
        self._stop_token_ids = frozenset(stop_token_ids)
        self._min_tokens = min_tokens
        self._end_token_ids = self._stop_token_ids.union(eos_token_ids if min_tokens else ())

    @property
    def num_candidates(self) -> int:
        """Next tokens that each beam must report: `width` that go on, whatever may end it."""
        return self.params.width + len(self._end_token_ids)

    @property
    def num_tokens(self) -> int:
        """Length of the live hypotheses."""
        return len(self.live[0].token_ids) if self.live else 0

    def advance(self, candidates: Sequence[Candidates], *, max_tokens: int) -> None:
        """Makes all live hypotheses one token longer.

        Args:
            candidates: of each live hypothesis, in their order.
            max_tokens: length at which a hypothesis has its last token.
        """
        length, width = self.num_tokens + 1, self.params.width
        is_last = length >= max_tokens
        live: list[Hypothesis] = []
        for place, longer in enumerate(self._ranked(candidates)):
            if is_last or longer.token_ids[-1] in self._stop_token_ids:
                if place < width:
                    self._finish(longer)
            elif len(live) < width:
                live.append(longer)
            if place + 1 >= width and (is_last or len(live) == width):
                break
        self.live = live
        self.is_done = not live or (len(self.finished) == width and self._is_over(length))

    def settled(self, *, start: int, max_tokens: int) -> list[int]:
        """Returns the tokens from `start` on that the best hypothesis is certain to have."""
        contenders = [beam.token_ids for beam in self.live if self._can_win(beam, max_tokens)]
        contenders += [hypothesis.token_ids for hypothesis in self.finished[:1]]
        first, end = contenders[0], start
        shortest = min(map(len, contenders))
        while end < shortest and all(tokens[end] == first[end] for tokens in contenders):
            end += 1
        return first[start:end]

    def _ranked(self, candidates: Sequence[Candidates]) -> Iterator[Hypothesis]:
        """Yields continuations, the likeliest first."""
        token_ids = np.array([found.token_ids for found in candidates], dtype=np.int64).ravel()
        logprobs = np.array([found.logprobs for found in candidates], dtype=np.float32).ravel()
        beams = np.repeat(np.arange(len(candidates)), len(candidates[0].token_ids))
        totals = np.array([beam.total for beam in self.live], dtype=np.float32)[beams] + logprobs
        is_starved = self.num_tokens < self._min_tokens
        for row in np.lexsort((token_ids, beams, -totals)).tolist():
            beam, token_id = int(beams[row]), int(token_ids[row])
            if is_starved and token_id in self._end_token_ids:
                continue
            parent = self.live[beam]
            rank = row - beam * len(candidates[0].token_ids) + 1
            yield Hypothesis(
                token_ids=[*parent.token_ids, token_id],
                choices=[*parent.choices, Choice(float(logprobs[row]), rank)],
                total=float(totals[row]),
                parent=beam,
            )

    def _finish(self, hypothesis: Hypothesis) -> None:
        """Keeps an ended hypothesis if it is among the best; the earlier one stays in a tie."""
        score = self._score(hypothesis.total, len(hypothesis.token_ids))
        self.finished.append(replace(hypothesis, score=score))
        self.finished.sort(key=lambda one: -one.score)  # a stable sort
        del self.finished[self.params.width :]

    def _score(self, total: float, length: int) -> float:
        return float(np.float32(total) / np.float32(length**self.params.length_penalty))

    def _is_over(self, length: int) -> bool:
        """Says whether a full search ends: it may stop early, or no beam seems to do better."""
        can_improve = self._score(self.live[0].total, length) > self.finished[-1].score
        return self.params.early_stopping or not can_improve

    def _can_win(self, beam: Hypothesis, max_tokens: int) -> bool:
        """Says whether a live hypothesis may still become the best, if all to come were certain."""
        if not self.finished:
            return True
        favours_length = self.params.length_penalty > 0
        length = max_tokens if favours_length else len(beam.token_ids) + 1
        return self._score(beam.total, length) > self.finished[0].score


def find_fault_in_search(request: Request, *, vocab_size: int) -> str | None:
    """Returns in one line why a search cannot be served; None if it can be, or there is none."""
    if request.beam_search is None:
        return None
    return next(_faults(request, request.beam_search, min(MAX_CANDIDATES, vocab_size)), None)


def _faults(request: Request, search: BeamSearchParams, most_candidates: int) -> Iterator[str]:
    width, count = search.width, request.num_sequences
    if request.delivered:
        yield f"delivered has {len(request.delivered)} sequences, must be unset with beam_search"
    for name, limit in BEAM_LIMITS.items():
        if not limit.holds(value := getattr(search, name)):
            yield f"beam_search.{name} is {value}, must be in {limit}"
    if count > width:
        yield f"num_sequences is {count}, must be at most beam_search.width, {width}"
    num_stops, most = len(set(request.params.stop_token_ids)), most_candidates - width
    if num_stops > most:
        yield (
            f"sampling_params.stop_token_ids has {num_stops} tokens, must be at most {most}"
            f" beside {width} beams"
        )
    for name in ("num_logprobs", *NOT_WITH_BEAMS):
        if (value := getattr(request.params, name)) != getattr(_NEUTRAL, name):
            yield f"sampling_params.{name} is {value}, must be unset with beam_search"
