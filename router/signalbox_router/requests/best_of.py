"""Holds a request's sequences until all have ended, and then returns the best ones.

They are ordered by the mean log probability of their kept tokens, as in vLLM's `best_of`, so that
longer sequences are not at a disadvantage. Sequences that failed come last.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.requests.request_output import Delta, Finish, FinishReason


def score(logprobs: Sequence[TokenLogprobs]) -> float:
    """Returns the mean log probability of a sequence's tokens."""
    if not logprobs:
        return -math.inf
    return sum(entry.logprob for entry in logprobs) / len(logprobs)


def order(finish: Finish | None, logprobs: Sequence[TokenLogprobs]) -> tuple[bool, float]:
    """Returns the sort key of a sequence: the best come first, failed ones last."""
    has_failed = finish is not None and finish.reason is FinishReason.ERROR
    return has_failed, -score(logprobs)


class BestOf:
    """The sequences of one request, as far as they were read."""

    def __init__(self, params: GenerationParams) -> None:
        self._params = params
        self._held: dict[int, Delta] = {}

    def add(self, deltas: list[Delta], *, is_last: bool) -> list[Delta]:
        """Adds deltas to the held ones; returns the best sequences, complete, with the last."""
        for delta in deltas:
            held = self._held.setdefault(delta.index, Delta(index=delta.index))
            held.text += delta.text
            held.token_ids += delta.token_ids
            held.logprobs += delta.logprobs
            held.finish = delta.finish
        if not is_last:
            return []
        by_index = sorted(self._held.values(), key=lambda delta: delta.index)
        best = sorted(by_index, key=lambda delta: order(delta.finish, delta.logprobs))
        return [self._ranked(delta, index) for index, delta in enumerate(best[: self._params.n])]

    def _ranked(self, delta: Delta, index: int) -> Delta:
        finish = delta.finish
        if finish is not None and finish.reason is not FinishReason.ERROR:
            finish = finish._replace(score=score(delta.logprobs))
        logprobs = [] if self._params.hides_logprobs else delta.logprobs
        return replace(delta, index=index, finish=finish, logprobs=logprobs)
