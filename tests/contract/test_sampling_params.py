"""SamplingParams, the message that carries them, and the values that a worker can serve."""

import re
from dataclasses import fields, replace

import pytest

from signalbox_contract import sampling_codec, sampling_params
from signalbox_contract.columns import pack_float32, pack_int32
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sampling_params import Limit, SamplingParams
from signalbox_contract.structured_output.grammar_cost import GrammarCost
from signalbox_contract.structured_output.scope import Scope
from signalbox_protos.common.v1 import common_pb2 as pb

EVERYTHING = SamplingParams(
    temperature=0.5,
    top_p=0.75,
    top_k=5,
    min_p=0.25,
    seed=(1 << 64) - 1,
    min_tokens=3,
    stop_token_ids=(7, 2),
    num_logprobs=0,
    presence_penalty=-0.5,
    frequency_penalty=1.5,
    repetition_penalty=2.0,
    typical_p=0.125,
    logit_bias=((4, -100.0), (9, 0.5)),
    allowed_token_ids=(1, 4, 9),
    bad_words=((3,), (5, 6)),
    num_prompt_logprobs=2,
    structured_output=("rules", "start: @answer | A", "choice", "yes", "no"),
    grammar_cost=GrammarCost(cpu_ns=1_200_000_000, peak_bytes=90 << 20),
    constraint_scope=Scope(
        is_open=True,
        opening_token_ids=(1,),
        closing_token_ids=(2, 3),
        max_reasoning_tokens=0,
        marker_token_ids=(4,),
        reasoning_token_ids=(5, 6),
        is_repeated=True,
        is_leading=False,
        is_required=False,
    ),
    logprob_token_ids=(8, 0, 8),
)


def carried(params: SamplingParams) -> SamplingParams:
    """What arrives at the other end of the wire."""
    data = sampling_codec.encode(params).SerializeToString()
    return sampling_codec.decode(pb.SamplingParams.FromString(data))


def test_every_field_arrives_as_it_was_sent() -> None:
    neutral = SamplingParams()
    unchanged = [f.name for f in fields(neutral) if getattr(EVERYTHING, f.name) == f.default]
    assert not unchanged, "a field that has its default shows nothing"
    assert carried(EVERYTHING) == EVERYTHING


def test_neutral_parameters_stay_neutral() -> None:
    assert carried(SamplingParams()) == SamplingParams()


def test_no_logprobs_differ_from_none_beside_the_sampled_token() -> None:
    assert carried(replace(EVERYTHING, num_logprobs=None)).num_logprobs is None
    assert carried(replace(EVERYTHING, num_logprobs=0)).num_logprobs == 0


def test_a_penalty_that_an_older_sender_does_not_know_is_neutral() -> None:
    params = sampling_codec.decode(pb.SamplingParams(temperature=1, top_p=1))
    assert params == SamplingParams(temperature=1)


def test_biases_of_other_length_than_their_tokens_are_refused() -> None:
    message = pb.SamplingParams(
        logit_bias_token_ids=pack_int32([1, 2]), logit_biases=pack_float32([0.5])
    )
    with pytest.raises(InvalidArgument, match=r"sampling_params\.logit_biases"):
        sampling_codec.decode(message)


NAN, INF = float("nan"), float("inf")
VOCAB_SIZE = 512
BOUNDS: dict[str, tuple[list[float], list[float]]] = {
    "temperature": ([0, 2, 1e30], [-1e-6]),
    "top_p": ([1e-6, 1], [0, 1.01]),
    "top_k": ([0, 1 << 31], [-1]),
    "min_p": ([0, 1], [-1e-6, 1.01]),
    "typical_p": ([1e-6, 1], [0, 1.01]),
    "presence_penalty": ([-2, 2], [-2.01, 2.01]),
    "frequency_penalty": ([-2, 2], [-2.01, 2.01]),
    "repetition_penalty": ([1e-6, 10], [0, 10.01]),
    "seed": ([0, 2**64 - 1], [-1, 2**64]),
    "min_tokens": ([0], [-1]),
    "num_logprobs": ([0, 512], [-1, 513]),
    "num_prompt_logprobs": ([0, 512], [-1, 513]),
}
"""Values that are allowed, and others that are not beside NaN and infinity, by the protos."""


def faulty_field(params: SamplingParams) -> str | None:
    fault = sampling_params.find_fault(params, vocab_size=VOCAB_SIZE, where="here")
    return None if fault is None else fault.field.removeprefix("here.")


def test_the_bounds_of_every_number_are_checked() -> None:
    numbers = {f.name for f in fields(SamplingParams) if f.type in (int, float, int | None)}
    assert numbers == BOUNDS.keys()


@pytest.mark.parametrize("name", BOUNDS)
def test_a_number_is_allowed_up_to_its_bounds(name: str) -> None:
    allowed, refused = BOUNDS[name]
    for value in allowed:
        assert faulty_field(replace(SamplingParams(), **{name: value})) is None
    for value in (*refused, NAN, INF, -INF):
        assert faulty_field(replace(SamplingParams(), **{name: value})) == name


@pytest.mark.parametrize(
    ("params", "field"),
    [
        (SamplingParams(logit_bias=((1, 100.0), (511, -100.0))), None),
        (SamplingParams(logit_bias=((1, 100.5),)), "logit_biases"),
        (SamplingParams(logit_bias=((1, NAN),)), "logit_biases"),
        (SamplingParams(logit_bias=tuple((i, 0.0) for i in range(1025))), "logit_biases"),
        (SamplingParams(logit_bias=((512, 1.0),)), "logit_bias_token_ids"),
        (SamplingParams(logit_bias=((1, 1.0), (1, 2.0))), "logit_bias_token_ids"),
        (SamplingParams(stop_token_ids=(0, 511)), None),
        (SamplingParams(stop_token_ids=(512,)), "stop_token_ids"),
        (SamplingParams(allowed_token_ids=(5, -1)), "allowed_token_ids"),
        (SamplingParams(bad_words=((1,), ())), "bad_words"),
        (SamplingParams(bad_words=((1, 512),)), "bad_words"),
        (SamplingParams(bad_words=((1,) * 8192,) * 2), None),
        (SamplingParams(bad_words=((1,) * 8192,) * 2 + ((1,),)), "bad_words"),
        (SamplingParams(logprob_token_ids=(1,) * 128, num_logprobs=0), None),
        (SamplingParams(logprob_token_ids=(1,) * 129, num_logprobs=0), "logprob_token_ids"),
        (SamplingParams(logprob_token_ids=(1,)), "num_logprobs"),
    ],
)
def test_lists_have_bounds(params: SamplingParams, field: str | None) -> None:
    assert faulty_field(params) == field


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Limit(float, above=0, most=1), "(0, 1]"),
        (Limit(int, least=-2, most=2), "[-2, 2]"),
        (Limit(int, least=1), "at least 1"),
    ],
)
def test_a_refusal_has_the_field_the_value_and_the_range(limit: Limit, text: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^a: allowed: {re.escape(text)}; given: nan$"):
        limit.check("a", NAN)
