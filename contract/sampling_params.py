"""Parameters by which a request's tokens are sampled, from the router to the worker.

The router applies every default and checks every value.
"""

from dataclasses import dataclass

from contract.columns import int32_list, pack_float32, pack_int32, unpack_float32, unpack_int32
from contract.errors import InvalidArgument
from contract.structured_output import constraint_codec, grammar_cost
from contract.structured_output.grammar_cost import UNMEASURED, GrammarCost
from protos.common.v1 import common_pb2 as pb

MAX_LOGPROB_TOKEN_IDS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The fields of common.v1's SamplingParams, which states their ranges; the defaults are greedy.

    The scheduler only reads the fields that bound or end a sequence.
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
    """Pairs of a token id and the number that is added to its logit."""
    allowed_token_ids: tuple[int, ...] = ()
    """Empty allows all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Token sequences that are never completed."""
    num_prompt_logprobs: int | None = None
    structured_output: tuple[str, ...] | None = None
    """The kind, as the proto names it, and its texts."""
    grammar_cost: GrammarCost = UNMEASURED
    """CPU time and memory for compiling `structured_output`."""
    logprob_token_ids: tuple[int, ...] = ()
    """Tokens reported beside each sampled one instead of the likeliest; num_logprobs is 0 then."""


def decode(message: pb.SamplingParams) -> SamplingParams:
    """Raises InvalidArgument if columns that belong together differ in length."""
    return SamplingParams(
        temperature=message.temperature,
        top_p=message.top_p,
        top_k=message.top_k,
        min_p=message.min_p,
        seed=message.seed,
        min_tokens=message.min_tokens,
        stop_token_ids=tuple(message.stop_token_ids),
        num_logprobs=message.num_logprobs if message.HasField("num_logprobs") else None,
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        repetition_penalty=_one_if_unset(message, "repetition_penalty"),
        typical_p=_one_if_unset(message, "typical_p"),
        logit_bias=_logit_bias(message),
        allowed_token_ids=_token_ids(message.allowed_token_ids, "allowed_token_ids"),
        bad_words=tuple(_token_ids(run.token_ids, "bad_words") for run in message.bad_words),
        num_prompt_logprobs=(
            message.num_prompt_logprobs if message.HasField("num_prompt_logprobs") else None
        ),
        structured_output=constraint_codec.read(message),
        grammar_cost=grammar_cost.decode(message.grammar_cost),
        logprob_token_ids=_token_ids(message.logprob_token_ids, "logprob_token_ids"),
    )


def _one_if_unset(message: pb.SamplingParams, name: str) -> float:
    return float(getattr(message, name)) if message.HasField(name) else 1.0


def _token_ids(column: bytes, name: str) -> tuple[int, ...]:
    return tuple(int32_list(column, f"sampling_params.{name}"))


def _logit_bias(message: pb.SamplingParams) -> tuple[tuple[int, float], ...]:
    where = "sampling_params"
    token_ids = unpack_int32(message.logit_bias_token_ids, f"{where}.logit_bias_token_ids")
    biases = unpack_float32(message.logit_biases, f"{where}.logit_biases")
    if len(token_ids) != len(biases):
        lengths = f"{len(token_ids)} tokens and {len(biases)} biases"
        raise InvalidArgument(f"{where}.logit_biases", lengths, "as many as tokens")
    return tuple(zip(token_ids.tolist(), biases.tolist(), strict=True))


def encode(params: SamplingParams) -> pb.SamplingParams:
    message = pb.SamplingParams(
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        seed=params.seed,
        min_tokens=params.min_tokens,
        stop_token_ids=params.stop_token_ids,
        num_logprobs=params.num_logprobs,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty,
        typical_p=params.typical_p,
        logit_bias_token_ids=pack_int32([token_id for token_id, _ in params.logit_bias]),
        logit_biases=pack_float32([bias for _, bias in params.logit_bias]),
        allowed_token_ids=pack_int32(params.allowed_token_ids),
        bad_words=[pb.TokenRun(token_ids=pack_int32(run)) for run in params.bad_words],
        num_prompt_logprobs=params.num_prompt_logprobs,
        logprob_token_ids=pack_int32(params.logprob_token_ids),
    )
    constraint_codec.write(message, params.structured_output)
    if params.grammar_cost != UNMEASURED:
        message.grammar_cost.CopyFrom(grammar_cost.encode(params.grammar_cost))
    return message
