"""One request in this process: from the router's request to vLLM's outputs."""

import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from signalbox.llm.requests.outputs import (
    ABORT,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    finish_reason,
)
from signalbox.llm.requests.prompts import Prompt
from signalbox.llm.requests.sampling_params import RequestOutputKind
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.updates import FinishedRequest, Usage
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.requests import best_of
from signalbox_router.requests.active_request import ActiveRequest
from signalbox_router.requests.request_output import Delta, Finish, FinishReason, acceptance_of
from signalbox_scheduler.requests.sequence_group import BeamGroup, SequenceGroup


@dataclass(slots=True, kw_only=True)
class _Completion(Delta):
    """All output of one sequence, and how much of it the caller has."""

    num_sent_chars: int = 0
    num_sent_tokens: int = 0

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish = delta.finish


class InProcessRequest(ActiveRequest):
    """The router's request, and vLLM's outputs of all that it has read.

    It is read when an output is due, or at each step if a stop string may end it.
    """

    group: SequenceGroup
    """The request as the scheduler has it."""

    def __init__(
        self, prompt: Prompt, params: GenerationParams, *, stream_interval: int, **fields: Any
    ) -> None:
        super().__init__(
            prompt_token_ids=list(prompt.token_ids),
            cache_salt=prompt.cache_salt,
            adapter=prompt.adapter,
            pooling=prompt.pooling,
            kept_token_ids=prompt.kept_token_ids,
            # All sequences are read: the best of them may be shown before the end.
            params=replace(params, n=params.num_sequences, best_of=None),
            arrived_ns=time.monotonic_ns(),
            max_unread_tokens=sys.maxsize,
            **fields,
        )
        self.output_kind = RequestOutputKind.CUMULATIVE
        self.ended: FinishedRequest | None = None
        self.is_aborted = False
        self._ended_at: float | None = None
        self._all_prompt_logprobs: list[TokenLogprobs] = []
        self._num_shown_tokens = self._num_outputs = 0
        self._tokens_due = stream_interval * params.num_sequences
        self._prompt = prompt
        self._asked = params
        self._completions = [_Completion(index=i) for i in range(params.num_sequences)]

    @property
    def is_due(self) -> bool:
        """True if the output kind and the stream interval allow an output now."""
        if self.ended is not None or self.is_aborted:
            return True
        if self.output_kind is RequestOutputKind.FINAL_ONLY:
            return False
        num_new_tokens = self.num_generated_tokens - self._num_shown_tokens
        return not self._num_outputs or num_new_tokens >= self._tokens_due

    def finish(self, ended: FinishedRequest) -> None:
        self.ended, self._ended_at = ended, time.monotonic()
        self.wake()

    def abort(self) -> None:
        self.is_aborted = True
        self.wake()

    def collect(self) -> None:
        """Detokenises new tokens."""
        for delta in self.read():
            completion = self._completions[delta.index]
            completion.add(delta)
            if delta.finish is not None and isinstance(self.group, BeamGroup):
                hypothesis = self.group.search.finished[delta.index]
                completion.logprobs = [
                    TokenLogprobs(one.logprob, one.rank, [], []) for one in hypothesis.choices
                ]
        self._all_prompt_logprobs += self.pop_prompt_logprobs()

    def output(self) -> RequestOutput:
        """Returns the complete output so far, or the new part with DELTA."""
        self.collect()
        self._num_shown_tokens = self.num_generated_tokens
        self._num_outputs += 1
        outputs = [self._output(index, one) for index, one in enumerate(self._best())]
        times, ended = self.group.times, self.ended
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt.text,
            prompt_token_ids=list(self.prompt_token_ids),
            outputs=outputs,
            prompt_logprobs=self._of_prompt(),
            finished=ended is not None or self.is_aborted,
            usage=Usage(
                prompt_tokens=self.group.num_prompt_tokens,
                completion_tokens=sum(len(one.token_ids) for one in self._completions),
                cached_tokens=self.group.num_cached_tokens,
            ),
            metrics=RequestMetrics(
                arrival_time=times.arrival,
                first_scheduled_time=times.first_scheduled,
                first_token_time=times.first_token,
                last_token_time=times.last_token,
                finished_time=self._ended_at,
                speculative_decoding=acceptance_of(ended.speculation) if ended else None,
                preempted_s=(
                    times.preempted_s if ended is None else ended.timings.preempted_ns / 1e9
                ),
            ),
            error=self._failure_message(),
        )

    def _best(self) -> list[_Completion]:
        """Returns the sequences for the caller: with best_of the best ones so far.

        With DELTA there are none before the end, because the best ones may change.
        """
        if not self._asked.is_ranked:
            return self._completions
        if self.output_kind is RequestOutputKind.DELTA and self.ended is None:
            return []
        ranked = sorted(self._completions, key=lambda one: best_of.order(one.finish, one.logprobs))
        return ranked[: self._asked.n]

    def _output(self, index: int, completion: _Completion) -> CompletionOutput:
        reason, stop_reason = self._reason_of(completion)
        is_found = isinstance(self.group, BeamGroup) and completion.finish is not None
        has_logprobs = self._asked.sampling.num_logprobs is not None or is_found
        shows_logprobs = has_logprobs and not self._asked.hides_logprobs
        first_char, first_token = 0, 0
        if self.output_kind is RequestOutputKind.DELTA:
            first_char, first_token = completion.num_sent_chars, completion.num_sent_tokens
            completion.num_sent_chars = len(completion.text)
            completion.num_sent_tokens = len(completion.token_ids)
        return CompletionOutput(
            index=index,
            text=completion.text[first_char:],
            token_ids=completion.token_ids[first_token:],
            cumulative_logprob=(
                sum(values.logprob for values in completion.logprobs) if has_logprobs else None
            ),
            logprobs=self._logprobs(completion, first_token) if shows_logprobs else None,
            finish_reason=reason,
            stop_reason=stop_reason,
            score=self._score(completion),
        )

    def _score(self, completion: _Completion) -> float | None:
        if completion.finish is None or not self._asked.is_ranked:
            return completion.finish.score if completion.finish else None
        return best_of.score(completion.logprobs)

    def _reason_of(self, completion: _Completion) -> tuple[str | None, int | str | None]:
        finish = completion.finish
        if finish is None and self.is_aborted:
            return ABORT, None
        if finish is None and self.ended is not None:  # the request failed as a whole
            finish = Finish(FinishReason.ERROR)
        return (None, None) if finish is None else finish_reason(finish)

    def _of_prompt(self) -> list[dict[int, Logprob] | None] | None:
        if self._asked.sampling.num_prompt_logprobs is None:
            return None
        token_ids = self.prompt_token_ids[1:]
        pairs = zip(token_ids, self._all_prompt_logprobs, strict=False)  # all of them, or none yet
        return [None, *(self._position(token_id, one) for token_id, one in pairs)]

    def _logprobs(self, completion: _Completion, first: int) -> list[dict[int, Logprob]]:
        pairs = zip(completion.token_ids[first:], completion.logprobs[first:], strict=True)
        are_likeliest = not self._asked.sampling.logprob_token_ids
        return [self._position(*pair, are_likeliest=are_likeliest) for pair in pairs]

    def _position(
        self, token_id: int, values: TokenLogprobs, *, are_likeliest: bool = True
    ) -> dict[int, Logprob]:
        text = self.tokenizer.vocabulary.token_text
        position = {token_id: Logprob(values.logprob, values.rank, text(token_id))}
        top = zip(values.top_token_ids, values.top_logprobs, strict=True)
        for rank, (top_id, logprob) in enumerate(top, start=1):
            known_rank = rank if are_likeliest else None
            position.setdefault(top_id, Logprob(logprob, known_rank, text(top_id)))
        return position

    def _failure_message(self) -> str | None:
        if self.ended is not None and self.ended.failure is not None:
            return self.ended.failure.message
        finishes = [completion.finish for completion in self._completions]
        return next((one.error_message for one in finishes if one and one.error_message), None)
