"""What a model's defaults mean for requests, through each of the router's doors."""

from typing import Any

import pytest
from smg_grpc_proto import vllm_engine_pb2

from signalbox_contract.sampling_defaults import NO_DEFAULTS, DefaultParams, SamplingDefaults
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.params.params_validation import check_sampling, resolve_params
from tests.router.apis.openai.clients import make_http
from tests.router.apis.vllm.test_servicer import generate
from tests.router.fakes import MAX_MODEL_LEN, finished, make_model, step
from tests.router.stack import Outputs, make_stack

MODEL = make_model()
DEFAULTS = SamplingDefaults(
    model=DefaultParams(
        temperature=0.5,
        top_p=0.75,
        top_k=40,
        min_p=0.25,
        repetition_penalty=1.25,
        max_tokens=9,
    ),
    override=DefaultParams(top_p=0.875),
)
"""Numbers that a float32 holds."""
IN_FORCE = {
    "temperature": 0.5,
    "top_p": 0.875,
    "top_k": 40,
    "min_p": 0.25,
    "repetition_penalty": 1.25,
}


def resolve(defaults: SamplingDefaults = DEFAULTS, **fields: Any) -> GenerationParams:
    check_sampling(fields, MODEL)
    return resolve_params(
        fields, num_prompt_tokens=10, model=MODEL, defaults=defaults, max_default_tokens=None
    )


def drawing(params: Any) -> dict[str, Any]:
    """Returns how a request's tokens are drawn."""
    return {name: getattr(params, name) for name in IN_FORCE}


def test_unset_fields_are_the_overrides_then_the_models_then_ours() -> None:
    assert drawing(resolve().sampling) == IN_FORCE
    ours = drawing(resolve(NO_DEFAULTS).sampling)
    assert ours == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }


@pytest.mark.parametrize(
    ("name", "neutral"),
    [("temperature", 1.0), ("top_p", 1.0), ("top_k", 0), ("min_p", 0.0), ("repetition_penalty", 1)],
)
def test_a_neutral_value_that_is_set_is_not_unset(name: str, neutral: float) -> None:
    asked = drawing(resolve(**{name: neutral}).sampling)
    assert asked == IN_FORCE | {name: neutral}


@pytest.mark.parametrize(
    "fields", [{"temperature": 0.0}, {"seed": 1}, {"beam_search": {"width": 2}}]
)
def test_a_greedy_seeded_or_beam_request_is_drawn_as_without_the_models_file(
    fields: dict[str, Any],
) -> None:
    of_model = SamplingDefaults(model=DEFAULTS.model)
    fields = {"seed": 1, **fields}
    with_file, without = resolve(of_model, **fields), resolve(NO_DEFAULTS, **fields)
    assert with_file.sampling == without.sampling
    assert with_file.max_tokens == 9  # the cap only ends the text sooner


def test_what_the_operator_sets_is_for_greedy_and_seeded_requests_too() -> None:
    override = SamplingDefaults(override=DefaultParams(repetition_penalty=1.5))
    assert resolve(override, temperature=0.0).sampling.repetition_penalty == 1.5
    assert resolve(override, seed=1).sampling.repetition_penalty == 1.5
    searched = resolve(override, beam_search={"width": 2})
    assert searched.sampling.repetition_penalty == 1.0  # a search has no penalties


def test_max_new_tokens_caps_what_is_not_asked_for() -> None:
    assert resolve().max_tokens == 9
    assert resolve(max_tokens=50).max_tokens == 50
    large = SamplingDefaults(model=DefaultParams(max_tokens=10_000))
    assert resolve(large).max_tokens == MAX_MODEL_LEN - 10


def ending(add: Any) -> Outputs:
    yield step((add.handle, 0, [5]), **finished(add.handle))


def encoded() -> common_pb2.SamplingDefaults:
    return common_pb2.SamplingDefaults(
        model=common_pb2.DefaultParams(**DEFAULTS.model.fields()),
        override=common_pb2.DefaultParams(**DEFAULTS.override.fields()),
    )


async def test_every_door_resolves_alike() -> None:
    async with make_http(ending, sampling_defaults=encoded()) as http:
        await http.stack.generate()
        await http.chat()
        await http.complete()
        await generate(http.stack)
        added = http.stack.scheduler.added
        assert [drawing(add.sampling_params) for add in added] == [IN_FORCE] * 4
        assert [add.max_tokens for add in added] == [9] * 4


async def test_every_door_keeps_what_is_set() -> None:
    async with make_http(ending, sampling_defaults=encoded()) as http:
        plain = {"temperature": 1.0, "top_p": 1.0}
        body = {"extra_body": {"top_k": -1, "min_p": 0, "repetition_penalty": 1}}
        ours = {**plain, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
        asked = pb.SamplingParams(**ours, max_tokens=20)
        await http.stack.generate(sampling_params=asked)
        await http.chat(**plain, max_tokens=20, **body)
        await http.complete(**plain, max_tokens=20, **body)
        params = vllm_engine_pb2.SamplingParams(**plain, repetition_penalty=1, max_tokens=20)
        await generate(http.stack, sampling_params=params)
        *own, engines = http.stack.scheduler.added
        assert [drawing(add.sampling_params) for add in own] == [ours] * 3
        # A 0 has no presence there.
        assert drawing(engines.sampling_params) == ours | {"top_k": 40, "min_p": 0.25}
        assert [add.max_tokens for add in (*own, engines)] == [20] * 4


async def test_a_completion_without_max_tokens_has_the_apis_own() -> None:
    async with make_http(ending) as http:
        await http.complete()
        await http.complete(max_tokens=17)
        assert [add.max_tokens for add in http.stack.scheduler.added] == [16, 17]


async def test_get_model_tells_the_defaults_in_force_and_where_they_come_from() -> None:
    async with make_stack(sampling_defaults=encoded()) as stack:
        defaults = (await stack.client.GetModel(pb.GetModelRequest())).default_sampling_params
        assert drawing(defaults) == IN_FORCE
        assert defaults.max_tokens == 9
        others = sorted(DEFAULTS.model.fields().keys() - {"top_p"})
        assert list(defaults.from_model) == others
        assert list(defaults.from_override) == ["top_p"]
    async with make_stack() as stack:
        defaults = (await stack.client.GetModel(pb.GetModelRequest())).default_sampling_params
        assert drawing(defaults) == drawing(resolve(NO_DEFAULTS).sampling)
        assert not defaults.HasField("max_tokens")
        assert not defaults.from_model and not defaults.from_override
