"""One request in this process: its sequences' text, from the scheduler's news to its output."""

from router.branch import Branch, make_branches
from router.outputs import Delta, Finish, FinishReason, TokenLogprobs
from router.sampling import SamplingParams
from router.tokenizer import Tokenizer
from scheduler_svc import publishing
from scheduler_svc.plan import TokenLogprobs as PlanLogprobs
from scheduler_svc.router_messages import EndedRequest, FinishedSequence
from scheduler_svc.sequence import SequenceGroup
from signalbox.llm.outputs import (
    ABORT,
    CompletionOutput,
    Logprob,
    RequestMetrics,
    RequestOutput,
    Usage,
    finish_reason,
)


class _Completion:
    """What was read of one sequence."""

    __slots__ = ("branch", "finish", "logprobs", "parts", "token_ids")

    def __init__(self, branch: Branch) -> None:
        self.branch = branch
        self.parts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish: Finish | None = None

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
    """Collects what the scheduler says, detokenises it when asked."""

    def __init__(
        self,
        *,
        handle: int,
        prompt: str | None,
        group: SequenceGroup,
        params: SamplingParams,
        tokenizer: Tokenizer,
    ) -> None:
        self.handle = handle
        self.group = group
        self.has_stop_strings = bool(params.stop)
        self.queued: publishing.Request | None = None
        """What the cluster knows it by, once it is let in."""
        self.ended: EndedRequest | None = None
        self.is_aborted = False
        self._prompt = prompt
        self._params = params
        self._tokenizer = tokenizer
        branches = make_branches(
            params, prompt_token_ids=group.prompt_token_ids, tokenizer=tokenizer
        )
        self._completions = [_Completion(branch) for branch in branches]

    @property
    def request_id(self) -> str:
        return self.group.request_id

    # From the scheduler

    def add_token(self, index: int, token_id: int, logprobs: PlanLogprobs | None) -> None:
        found = [] if logprobs is None else [TokenLogprobs(*logprobs)]
        self._completions[index].branch.add([token_id], found)

    def end_sequence(self, finished: FinishedSequence) -> None:
        finish = Finish(
            FinishReason[finished.reason.name],
            stop_token_id=finished.stop_token_id,
            error_message=finished.error_message,
        )
        self._completions[finished.index].branch.end(finish)

    # To the caller

    def read(self) -> list[Branch]:
        """Detokenises what is new; returns the branches that a stop string has just ended."""
        stopped = []
        for completion in self._completions:
            delta = completion.branch.read()
            if delta is None:
                continue
            completion.add(delta)
            if delta.finish is not None and completion.branch.ended is None:
                stopped.append(completion.branch)
        return stopped

    def output(self) -> RequestOutput:
        """Returns everything so far. Who has stop strings is read by the core at each step."""
        if not self.has_stop_strings:
            self.read()
        outputs = [self._output(completion) for completion in self._completions]
        times, ended = self.group.times, self.ended
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=list(self.group.prompt_token_ids),
            outputs=outputs,
            finished=ended is not None or self.is_aborted,
            usage=Usage(
                prompt_tokens=self.group.num_prompt_tokens,
                completion_tokens=sum(len(output.token_ids) for output in outputs),
                cached_tokens=self.group.num_cached_tokens,
            ),
            metrics=RequestMetrics(
                arrival_time=times.arrival,
                first_scheduled_time=times.first_scheduled,
                first_token_time=times.first_token,
                last_token_time=times.last_token,
                finished_time=None if ended is None else ended.now,
                preempted_s=times.preempted_s,
            ),
            error=self._error(),
        )

    def _output(self, completion: _Completion) -> CompletionOutput:
        reason, stop_reason = self._finish(completion)
        has_logprobs = self._params.num_logprobs is not None
        return CompletionOutput(
            index=completion.branch.index,
            text=completion.text,
            token_ids=list(completion.token_ids),
            cumulative_logprob=(
                sum(values.logprob for values in completion.logprobs) if has_logprobs else None
            ),
            logprobs=self._logprobs(completion) if has_logprobs else None,
            finish_reason=reason,
            stop_reason=stop_reason,
        )

    def _finish(self, completion: _Completion) -> tuple[str | None, int | str | None]:
        finish = completion.finish
        if finish is None and self.is_aborted:
            return ABORT, None
        if finish is None and self.ended is not None:  # the request failed as a whole
            finish = Finish(FinishReason.ERROR)
        return (None, None) if finish is None else finish_reason(finish)

    def _logprobs(self, completion: _Completion) -> list[dict[int, Logprob]]:
        pairs = zip(completion.token_ids, completion.logprobs, strict=True)
        return [self._position(token_id, values) for token_id, values in pairs]

    def _position(self, token_id: int, values: TokenLogprobs) -> dict[int, Logprob]:
        text = self._tokenizer.token_text
        position = {token_id: Logprob(values.logprob, values.rank, text(token_id))}
        top = zip(values.top_token_ids, values.top_logprobs, strict=True)
        for rank, (top_id, logprob) in enumerate(top, start=1):
            position.setdefault(top_id, Logprob(logprob, rank, text(top_id)))
        return position

    def _error(self) -> str | None:
        if self.ended is not None and self.ended.failure is not None:
            return self.ended.failure.message
        finishes = [completion.finish for completion in self._completions]
        return next((one.error_message for one in finishes if one and one.error_message), None)
