"""An answer, and the chunks of a stream that form it."""

from dataclasses import dataclass, field

from signalbox_protos.inference.v1 import inference_pb2 as pb

_Response = pb.GenerateResponse | pb.ChatResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """New output of one sequence; a request has `n` sequences."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """Reason of the end, such as "stop" or "length", in the sequence's last delta."""
    reasoning: str = ""
    """Reasoning text that this delta adds; empty once the sequence's text begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    num_drafts: int = 0
    """Tokens that were expected and computed early."""
    num_accepted_drafts: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One message of a stream."""

    request_id: str
    deltas: tuple[Delta, ...]
    usage: Usage | None
    """The request's tokens, in its last chunk."""

    @property
    def text(self) -> str:
        """New text of the first sequence."""
        return "".join(delta.text for delta in self.deltas if delta.index == 0)

    @property
    def reasoning(self) -> str:
        """New reasoning text of the first sequence."""
        return "".join(delta.reasoning for delta in self.deltas if delta.index == 0)


@dataclass(slots=True)
class Output:
    """One sequence's output so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """Reason of the end; None before it."""
    reasoning: str = ""


@dataclass(slots=True)
class Answer:
    """The output of a request so far; complete once `usage` is set."""

    request_id: str = ""
    outputs: list[Output] = field(default_factory=list)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """Text of the first sequence, which is the best one with `best_of` or a beam search."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def reasoning(self) -> str:
        """Reasoning text of the first sequence; empty if the model does not reason."""
        return self.outputs[0].reasoning if self.outputs else ""

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason if self.outputs else None

    def add(self, chunk: Chunk) -> None:
        """Adds the next chunk."""
        self.request_id = chunk.request_id
        self.usage = chunk.usage or self.usage
        for delta in chunk.deltas:
            output = self._output(delta.index)
            output.text += delta.text
            output.reasoning += delta.reasoning
            output.token_ids += delta.token_ids
            output.finish_reason = delta.finish_reason or output.finish_reason

    def _output(self, index: int) -> Output:
        while len(self.outputs) <= index:
            self.outputs.append(Output())
        return self.outputs[index]


def read_chunk(response: _Response) -> Chunk:
    """Converts a message to plain values."""
    return Chunk(
        request_id=response.request_id,
        deltas=tuple(_delta(output) for output in response.outputs),
        usage=_usage(response.usage) if response.HasField("usage") else None,
    )


def _delta(output: pb.SequenceDelta) -> Delta:
    reason = pb.FinishReason.Name(output.finish.reason) if output.HasField("finish") else None
    return Delta(
        index=output.index,
        text=output.text,
        token_ids=tuple(output.token_ids),
        reasoning=output.reasoning,
        finish_reason=reason and reason.removeprefix("FINISH_REASON_").lower(),
    )


def _usage(usage: pb.Usage) -> Usage:
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        num_drafts=usage.speculation.num_drafts,
        num_accepted_drafts=usage.speculation.num_accepted,
    )
