"""SamplingParams and the message that carries them say the same."""

from dataclasses import fields, replace

import pytest

from contract import sampling_params
from contract.columns import pack_float32, pack_int32
from contract.errors import InvalidArgument
from contract.sampling_params import SamplingParams
from contract.structured_output.grammar_cost import GrammarCost
from protos.common.v1 import common_pb2 as pb

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
    structured_output=("or_calls", "calls: A", "choice", "yes", "no"),
    grammar_cost=GrammarCost(cpu_ns=1_200_000_000, peak_bytes=90 << 20),
    logprob_token_ids=(8, 0, 8),
)


def carried(params: SamplingParams) -> SamplingParams:
    """What arrives at the other end of the wire."""
    data = sampling_params.encode(params).SerializeToString()
    return sampling_params.decode(pb.SamplingParams.FromString(data))


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
    params = sampling_params.decode(pb.SamplingParams(temperature=1, top_p=1))
    assert params == SamplingParams(temperature=1)


def test_biases_of_other_length_than_their_tokens_are_refused() -> None:
    message = pb.SamplingParams(
        logit_bias_token_ids=pack_int32([1, 2]), logit_biases=pack_float32([0.5])
    )
    with pytest.raises(InvalidArgument, match=r"sampling_params\.logit_biases"):
        sampling_params.decode(message)
