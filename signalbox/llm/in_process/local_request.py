"""One request in this process: from the scheduler's outputs to the text of its sequences."""

from contract.logprobs import TokenLogprobs
from contract.updates import FinishedRequest, FinishedSequence
from router.params.generation_params import GenerationParams
from router.requests import best_of
from router.requests.output_sequence import OutputSequence, make_branches
from router.requests.request_output import Delta, Finish, FinishReason, finish_of
from router.tokenization.tokenizer import Tokenizer
from scheduler_svc.requests.sequence_group import SequenceGroup
from signalbox.llm.requests.outputs import (
    ABORT,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    Usage,
    finish_reason,
)
from signalbox.llm.requests.sampling_params import RequestOutputKind


class _Completion:
    """The output of one sequence."""

    __slots__ = (
        "branch",
        "finish",
        "logprobs",
        "num_sent_chars",
        "num_sent_tokens",
        "parts",
        "token_ids",
    )

    def __init__(self, branch: OutputSequence) -> None:
        self.branch = branch
        self.parts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish: Finish | None = None
        self.num_sent_chars = self.num_sent_tokens = 0

    def add(self, delta: Delta) -> None:
        self.parts.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.finish = delta.finish

    @property
    def text(self) -> str:
        if len(self.parts) > 1:
            self.parts = ["".join(self.parts)]
        return self.parts[0] if self.parts else ""


class LocalRequest:
    """Collects the scheduler's outputs, and detokenises them when they are read."""

    def __init__(
        self,
        *,
        prompt: str | None,
        group: SequenceGroup,
        params: GenerationParams,
        tokenizer: Tokenizer,
        stream_interval: int = 1,
    ) -> None:
        self.handle = group.request.handle
        self.group = group
        self.has_stop_strings = bool(params.stop)
        self.ended: FinishedRequest | None = None
        self._ended_at: float | None = None
        self.is_aborted = False
        self.output_kind = RequestOutputKind.CUMULATIVE
        self._prompt_logprobs: list[TokenLogprobs] = []
        self._num_new_tokens = 0
        self._num_outputs = 0
        self._tokens_due = stream_interval * params.num_sequences
        self._prompt = prompt
        self._params = params
        self._tokenizer = tokenizer
        branches = make_branches(
            params, prompt_token_ids=group.request.prompt_token_ids, tokenizer=tokenizer
        )
        self._completions = [_Completion(branch) for branch in branches]

    @property
    def request_id(self) -> str:
        return self.group.request_id

    @property
    def is_due(self) -> bool:
        """True if the output kind and the stream interval allow an output now."""
        if self.ended is not None or self.is_aborted:
            return True
        is_enough = not self._num_outputs or self._num_new_tokens >= self._tokens_due
        return is_enough and self.output_kind is not RequestOutputKind.FINAL_ONLY

    # From the scheduler

    def add_tokens(self, index: int, token_ids: list[int], logprobs: list[TokenLogprobs]) -> None:
        self._num_new_tokens += len(token_ids)
        self._completions[index].branch.add(token_ids, logprobs)

    def add_prompt_logprobs(self, first_position: int, logprobs: list[TokenLogprobs]) -> None:
        assert first_position == len(self._prompt_logprobs) + 1, "each position once, in order"
        self._prompt_logprobs += logprobs

    def end_sequence(self, finished: FinishedSequence) -> None:
        self._completions[finished.index].branch.end(finish_of(finished))

    def end(self, ended: FinishedRequest, now: float) -> None:
        self.ended, self._ended_at = ended, now

    # To the caller

    def read(self) -> list[OutputSequence]:
        """Detokenises new tokens; returns the branches that a stop string has just ended."""
        stopped = []
        for completion in self._completions:
            delta = completion.branch.read()
            if delta is None:
                continue
            completion.add(delta)
            if delta.finish is not None and self.group.search is not None:
                completion.logprobs = self._logprobs_of_hypothesis(completion)
            if delta.finish is not None and completion.branch.ended is None:
                stopped.append(completion.branch)
        return stopped

    def output(self) -> RequestOutput:
        """Returns the complete output so far, or the new part with DELTA.

        The core reads requests with stop strings at each step.
        """
        self._num_new_tokens, self._num_outputs = 0, self._num_outputs + 1
        if not self.has_stop_strings:
            self.read()
        outputs = [self._output(index, one) for index, one in enumerate(self._best())]
        times, ended = self.group.times, self.ended
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=list(self.group.request.prompt_token_ids),
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
                preempted_s=(
                    times.preempted_s if ended is None else ended.timings.preempted_ns / 1e9
                ),
            ),
            error=self._error(),
        )

    def _best(self) -> list[_Completion]:
        """Returns the sequences for the caller: with best_of the best ones so far.

        With DELTA there are none before the end, because the best ones may change.
        """
        if not self._params.is_ranked:
            return self._completions
        if self.output_kind is RequestOutputKind.DELTA and self.ended is None:
            return []
        ranked = sorted(self._completions, key=lambda one: best_of.order(one.finish, one.logprobs))
        return ranked[: self._params.n]

    def _output(self, index: int, completion: _Completion) -> CompletionOutput:
        reason, stop_reason = self._finish(completion)
        is_found = self.group.search is not None and completion.finish is not None
        has_logprobs = self._params.sampling.num_logprobs is not None or is_found
        shows_logprobs = has_logprobs and not self._params.hides_logprobs
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
        if completion.finish is None or not self._params.is_ranked:
            return completion.finish.score if completion.finish else None
        return best_of.score(completion.logprobs)

    def _finish(self, completion: _Completion) -> tuple[str | None, int | str | None]:
        finish = completion.finish
        if finish is None and self.is_aborted:
            return ABORT, None
        if finish is None and self.ended is not None:  # the request failed as a whole
            finish = Finish(FinishReason.ERROR)
        return (None, None) if finish is None else finish_reason(finish)

    def _of_prompt(self) -> list[dict[int, Logprob] | None] | None:
        if self._params.sampling.num_prompt_logprobs is None:
            return None
        token_ids = self.group.request.prompt_token_ids[1:]
        pairs = zip(token_ids, self._prompt_logprobs, strict=False)  # all of them, or none yet
        return [None, *(self._position(token_id, one) for token_id, one in pairs)]

    def _logprobs_of_hypothesis(self, completion: _Completion) -> list[TokenLogprobs]:
        assert self.group.search is not None
        hypothesis = self.group.search.finished[completion.branch.index]
        return [TokenLogprobs(one.logprob, one.rank, [], []) for one in hypothesis.choices]

    def _logprobs(self, completion: _Completion, first: int) -> list[dict[int, Logprob]]:
        pairs = zip(completion.token_ids[first:], completion.logprobs[first:], strict=True)
        are_likeliest = not self._params.sampling.logprob_token_ids
        return [self._position(*pair, are_likeliest=are_likeliest) for pair in pairs]

    def _position(
        self, token_id: int, values: TokenLogprobs, *, are_likeliest: bool = True
    ) -> dict[int, Logprob]:
        text = self._tokenizer.token_text
        position = {token_id: Logprob(values.logprob, values.rank, text(token_id))}
        top = zip(values.top_token_ids, values.top_logprobs, strict=True)
        for rank, (top_id, logprob) in enumerate(top, start=1):
            known_rank = rank if are_likeliest else None
            position.setdefault(top_id, Logprob(logprob, known_rank, text(top_id)))
        return position

    def _error(self) -> str | None:
        if self.ended is not None and self.ended.failure is not None:
            return self.ended.failure.message
        finishes = [completion.finish for completion in self._completions]
        return next((one.error_message for one in finishes if one and one.error_message), None)
