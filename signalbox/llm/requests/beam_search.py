"""Beam search in vLLM's shape: takes `BeamSearchParams`, returns `BeamSearchOutput`.

The hypotheses are those of transformers' `generate(num_beams=...)`. vLLM's own search scores
hypotheses without their end-of-sequence token, and follows the beams up to `max_tokens`.
"""

from dataclasses import dataclass, field

from signalbox.llm.requests.outputs import CompletionOutput, Logprob, RequestOutput, StopReason
from signalbox.llm.requests.sampling_params import SamplingParams
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer


@dataclass(slots=True, kw_only=True)
class BeamSearchParams:
    """Parameters of a beam search. Raises ValueError or TypeError.

    Args:
        beam_width: hypotheses that are followed and returned, in [1, 32].
        max_tokens: most tokens of a hypothesis.
        ignore_eos: True if hypotheses continue past the model's end-of-sequence token.
        temperature: must be 0; a search does not sample.
        length_penalty: a hypothesis scores its log probability over its length to this power.
        include_stop_str_in_output: True if the end-of-sequence token is part of the result.
        early_stopping: True ends the search as soon as beam_width hypotheses have ended.
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    early_stopping: bool = False

    def __post_init__(self) -> None:
        self.sampling_params()

    def sampling_params(self) -> SamplingParams:
        """Returns the equal `SamplingParams`."""
        if self.temperature != 0:
            raise ValueError(f"temperature is {self.temperature}; a beam search has 0")
        return SamplingParams(
            n=self.beam_width,
            temperature=0.0,
            max_tokens=self.max_tokens,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            use_beam_search=True,
            length_penalty=self.length_penalty,
            early_stopping=self.early_stopping,
        )


@dataclass(slots=True, kw_only=True)
class BeamSearchSequence:
    """One hypothesis."""

    tokens: list[int]
    """Token ids, including the prompt's."""
    logprobs: list[dict[int, Logprob]] = field(default_factory=list)
    """Log probabilities of each token after the prompt."""
    cum_logprob: float = 0.0
    text: str | None = None
    """Text of all tokens, including special ones."""
    finish_reason: str | None = None
    stop_reason: StopReason = None
    score: float | None = None
    """Score by which the hypotheses are ordered."""


@dataclass(slots=True, kw_only=True)
class BeamSearchOutput:
    """The hypotheses of one prompt, the best first; none if the request failed."""

    sequences: list[BeamSearchSequence]
    error: str | None = None


def beam_search_output(
    output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchOutput:
    """Returns a finished search in vLLM's shape."""
    if output.error is not None:
        return BeamSearchOutput(sequences=[], error=output.error)
    sequences = [_sequence(one, output, params, tokenizer) for one in output.outputs]
    return BeamSearchOutput(sequences=sequences)


def _sequence(
    found: CompletionOutput, output: RequestOutput, params: BeamSearchParams, tokenizer: Tokenizer
) -> BeamSearchSequence:
    token_ids = found.token_ids
    if found.finish_reason == "stop" and not params.include_stop_str_in_output:
        token_ids = token_ids[:-1]
    tokens = output.prompt_token_ids + token_ids
    detokenizer = tokenizer.vocabulary.make_detokenizer([], skip_special_tokens=False)
    return BeamSearchSequence(
        tokens=tokens,
        logprobs=found.logprobs or [],
        cum_logprob=found.cumulative_logprob or 0.0,
        text=detokenizer.push(tokens) + detokenizer.flush(),
        finish_reason=found.finish_reason,
        stop_reason=found.stop_reason,
        score=found.score,
    )
