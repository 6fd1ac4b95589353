"""Converts `SamplingParams` to common.v1's message and back.

It needs numpy, which commands that only read `LIMITS` do not import.
"""

from signalbox_contract.columns import (
    int32_list,
    pack_float32,
    pack_int32,
    unpack_float32,
    unpack_int32,
)
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import LIMITS, SamplingParams
from signalbox_contract.structured_output import constraint_codec, grammar_cost, scope
from signalbox_contract.structured_output.grammar_cost import UNMEASURED
from signalbox_contract.structured_output.scope import WHOLE
from signalbox_protos.common.v1 import common_pb2 as pb

_NUMBERS = (*LIMITS, "num_logprobs", "num_prompt_logprobs")
"""Fields that have the same name and value in both."""
_HAS_PRESENCE = {one.name: one.has_presence for one in pb.SamplingParams.DESCRIPTOR.fields}
_ALWAYS_SET = tuple(name for name in _NUMBERS if not _HAS_PRESENCE[name])
_OPTIONAL = tuple(name for name in _NUMBERS if _HAS_PRESENCE[name])
"""Numbers whose default holds unless they are set."""


def decode(message: pb.SamplingParams) -> SamplingParams:
    """Raises InvalidArgument if columns that belong together differ in length."""
    numbers = {name: getattr(message, name) for name in _ALWAYS_SET}
    for name in _OPTIONAL:
        if message.HasField(name):
            numbers[name] = getattr(message, name)
    return SamplingParams(
        **numbers,
        stop_token_ids=tuple(message.stop_token_ids),
        logit_bias=_logit_bias(message),
        allowed_token_ids=_token_ids(message.allowed_token_ids, "allowed_token_ids"),
        bad_words=tuple(_token_ids(run.token_ids, "bad_words") for run in message.bad_words),
        structured_output=constraint_codec.read(message),
        grammar_cost=grammar_cost.decode(message.grammar_cost),
        constraint_scope=scope.decode(message.constraint_scope)
        if message.HasField("constraint_scope")
        else WHOLE,
        logprob_token_ids=_token_ids(message.logprob_token_ids, "logprob_token_ids"),
    )


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
        **{name: getattr(params, name) for name in _NUMBERS},
        stop_token_ids=params.stop_token_ids,
        logit_bias_token_ids=pack_int32([token_id for token_id, _ in params.logit_bias]),
        logit_biases=pack_float32([bias for _, bias in params.logit_bias]),
        allowed_token_ids=pack_int32(params.allowed_token_ids),
        bad_words=[pb.TokenRun(token_ids=pack_int32(run)) for run in params.bad_words],
        logprob_token_ids=pack_int32(params.logprob_token_ids),
    )
    constraint_codec.write(message, params.structured_output)
    if params.grammar_cost != UNMEASURED:
        message.grammar_cost.CopyFrom(grammar_cost.encode(params.grammar_cost))
    if params.constraint_scope != WHOLE:
        message.constraint_scope.CopyFrom(scope.encode(params.constraint_scope))
    return message
