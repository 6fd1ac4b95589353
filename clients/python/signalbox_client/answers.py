"""An answer, and how it is put together from a stream's messages."""

from dataclasses import dataclass, field

from protos.inference.v1 import inference_pb2 as pb

_Response = pb.GenerateResponse | pb.ChatResponse


@dataclass(slots=True)
class Output:
    """One sequence; a request has `n` of them."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """Such as "stop" or "length"; None while it goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


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
    def finish_reason(self) -> str | None:
        return self.outputs[0].finish_reason if self.outputs else None

    def add(self, response: _Response) -> str:
        """Takes a message in; returns what it adds to the first sequence's text."""
        self.request_id = response.request_id
        for delta in response.outputs:
            output = self._output(delta.index)
            output.text += delta.text
            output.token_ids += delta.token_ids
            if delta.HasField("finish"):
                reason = pb.FinishReason.Name(delta.finish.reason)
                output.finish_reason = reason.removeprefix("FINISH_REASON_").lower()
        if response.HasField("usage"):
            self.usage = Usage(
                prompt_tokens=response.usage.prompt_tokens,
                completion_tokens=response.usage.completion_tokens,
                cached_tokens=response.usage.cached_tokens,
            )
        return "".join(delta.text for delta in response.outputs if delta.index == 0)

    def _output(self, index: int) -> Output:
        while len(self.outputs) <= index:
            self.outputs.append(Output())
        return self.outputs[index]
