"""An answer, and the chunks of a stream that it is put together from."""

from dataclasses import dataclass, field

from protos.inference.v1 import inference_pb2 as pb

_Response = pb.GenerateResponse | pb.ChatResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What is added to one sequence; a request has `n` of them."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str | None
    """Such as "stop" or "length", in the sequence's last delta."""
    reasoning: str = ""
    """Reasoning text that this delta adds; empty once the sequence's text begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One message of a stream."""

    request_id: str
    deltas: tuple[Delta, ...]
    usage: Usage | None
    """In the last one."""

    @property
    def text(self) -> str:
        """What is added to the first sequence."""
        return "".join(delta.text for delta in self.deltas if delta.index == 0)

    @property
    def reasoning(self) -> str:
        """Reasoning text that this part adds to the first sequence."""
        return "".join(delta.reasoning for delta in self.deltas if delta.index == 0)


@dataclass(slots=True)
class Output:
    """One sequence as far as it has come."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """None while it goes on."""
    reasoning: str = ""


@dataclass(slots=True)
class Answer:
    """What has come of a request so far; all of it once `usage` is there."""

    request_id: str = ""
    outputs: list[Output] = field(default_factory=list)
    usage: Usage | None = None

    @property
    def text(self) -> str:
        """The first sequence's, which with `best_of` or a beam search is the best."""
        return self.outputs[0].text if self.outputs else ""

    @property
    def reasoning(self) -> str:
        """Reasoning text of the first sequence; empty if the model does not reason."""
        return self.outputs[0].reasoning if self.outputs else ""

    @property
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason if self.outputs else None

    def add(self, chunk: Chunk) -> None:
        """Takes in what comes next."""
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
    """Makes plain values of a message."""
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
    )
