"""How a request's tokens are drawn, on its way from the router through the scheduler to a worker.

Every default is applied and every value checked at the door; `sampling_codec` puts it on the wire.
"""

from dataclasses import dataclass

MAX_LOGPROB_TOKEN_IDS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The fields of worker.v1's SamplingParams, which states their ranges; by itself greedy.

    The scheduler only reads those that bound or end a sequence.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    num_logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    typical_p: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, what is added to its logit)."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens that are never completed."""
    num_prompt_logprobs: int | None = None
    structured_output: tuple[str, ...] | None = None
    """The kind, as the proto names it, and its texts."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens reported beside each sampled one instead of the likeliest; num_logprobs is 0 then."""
