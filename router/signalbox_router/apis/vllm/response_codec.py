"""Converts updates to vllm.grpc.engine's responses: chunks of tokens, then each sequence's end.

A gateway makes text of the tokens itself. Chunks count the tokens that they add; the last message
of a sequence repeats all of it, except log probabilities that chunks have sent. It is sent at the
end of the request, when the number of cached tokens is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from smg_grpc_proto import vllm_engine_pb2 as pb

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, Finish, FinishReason

ABORTED = "abort"
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.STOP_STRING: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.ERROR: "error",
}


@dataclass(slots=True)
class _Sequence:
    """All output of one sequence, for its last message."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None
    has_begun: bool = False
    """True if a chunk of it was sent."""


class Answer:
    """Makes the responses of one request."""

    def __init__(self, *, is_streamed: bool, num_sequences: int) -> None:
        self._is_streamed = is_streamed
        self._num_sequences = num_sequences
        self._sequences: dict[int, _Sequence] = {}
        self._num_prompt_tokens = 0
        self._prompt_logprobs: pb.InputLogProbs | None = None

    def responses(self, update: Update) -> Iterator[pb.GenerateResponse]:
        """Yields the responses for an update."""
        self._num_prompt_tokens = len(update.request.prompt_token_ids)
        if update.prompt_logprobs:
            ids = update.request.prompt_token_ids
            self._prompt_logprobs = _input_logprobs(ids, update.prompt_logprobs)
        for delta in update.deltas:
            sequence = self._sequences.setdefault(delta.index, _Sequence())
            sequence.token_ids += delta.token_ids
            sequence.finish = delta.finish
            if not self._is_streamed:
                sequence.logprobs += delta.logprobs
            elif delta.token_ids:
                yield self._chunk(delta, sequence)
        if update.end is not None:
            for index, sequence in sorted(self._sequences.items()):
                yield self._complete(index, sequence, update.end.usage.cached_tokens)

    def aborted(self) -> Iterator[pb.GenerateResponse]:
        """Yields the last messages of an aborted request."""
        for index in range(self._num_sequences):
            yield self._complete(index, self._sequences.get(index, _Sequence()), 0)

    def _chunk(self, delta: Delta, sequence: _Sequence) -> pb.GenerateResponse:
        is_first, sequence.has_begun = not sequence.has_begun, True
        chunk = pb.GenerateStreamChunk(
            token_ids=delta.token_ids,
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=len(delta.token_ids),
            output_logprobs=_output_logprobs(delta.token_ids, delta.logprobs),
            input_logprobs=self._prompt_logprobs if is_first else None,
            index=delta.index,
        )
        return pb.GenerateResponse(chunk=chunk)

    def _complete(
        self, index: int, sequence: _Sequence, num_cached_tokens: int
    ) -> pb.GenerateResponse:
        finish = sequence.finish
        complete = pb.GenerateComplete(
            output_ids=sequence.token_ids,
            finish_reason=ABORTED if finish is None else _REASONS[finish.reason],
            prompt_tokens=self._num_prompt_tokens,
            completion_tokens=len(sequence.token_ids),
            cached_tokens=num_cached_tokens,
            output_logprobs=_output_logprobs(sequence.token_ids, sequence.logprobs),
            input_logprobs=self._prompt_logprobs,
            index=index,
        )
        if finish is not None and finish.stop is not None:
            complete.matched_stop_str = finish.stop
        if finish is not None and finish.stop_token_id is not None:
            complete.matched_token_id = finish.stop_token_id
        return pb.GenerateResponse(complete=complete)


def _output_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> pb.OutputLogProbs | None:
    if not logprobs:
        return None
    message = pb.OutputLogProbs(token_ids=token_ids)
    message.token_logprobs.extend(one.logprob for one in logprobs)
    if any(one.top_token_ids for one in logprobs):
        message.top_logprobs.extend(map(_top, logprobs))
    return message


def _input_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> pb.InputLogProbs:
    """Returns the prompt's log probabilities; its first token has none."""
    message = pb.InputLogProbs(token_ids=token_ids, token_logprobs=[pb.InputTokenLogProb()])
    message.token_logprobs.extend(pb.InputTokenLogProb(value=one.logprob) for one in logprobs)
    if any(one.top_token_ids for one in logprobs):
        message.top_logprobs.extend([pb.TopLogProbs(), *map(_top, logprobs)])
    return message


def _top(one: TokenLogprobs) -> pb.TopLogProbs:
    return pb.TopLogProbs(values=one.top_logprobs, token_ids=one.top_token_ids)
