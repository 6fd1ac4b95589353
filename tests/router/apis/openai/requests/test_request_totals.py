"""Lists that all prompts of an HTTP request share: converted once, and bounded in all."""

from typing import Any

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_router.apis.inference import generate_codec
from signalbox_router.apis.openai.requests import request_codec
from signalbox_router.apis.openai.requests.request_totals import MAX_REPORTED, check_products
from signalbox_router.apis.openai.requests.types import CompletionBody
from signalbox_router.params import params_validation
from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.fakes import make_model

VOCABULARY = 256_000


def make_body(num_prompts: int, **fields: Any) -> CompletionBody:
    return CompletionBody.model_validate({"prompt": ["a"] * num_prompts, **fields})


def biases(count: int) -> dict[str, float]:
    return {str(i): 1.0 for i in range(count)}


@pytest.mark.parametrize(
    ("num_prompts", "fields"),
    [
        (1024, {"logit_bias": biases(1024), "stop": ["a"] * 64, "stop_token_ids": [1] * 256}),
        (16, {"allowed_token_ids": [1] * VOCABULARY}),
        (1, {"allowed_token_ids": [1] * VOCABULARY, "logit_bias": biases(1024)}),
        (1024, {"n": 64}),
        (1024, {"n": 3, "logprobs": 20}),
        (1024, {"logprobs": 20, "prompt_logprobs": 20}),
        (1, {"n": 64, "logprobs": 20, "prompt_logprobs": 20}),
        (48, {"n": 64, "logprobs": 20}),
    ],
)
def test_products_up_to_the_edge_are_legal(num_prompts: int, fields: dict[str, Any]) -> None:
    check_products(make_body(num_prompts, **fields), num_prompts)


@pytest.mark.parametrize(
    ("num_prompts", "fields", "param"),
    [
        (64, {"allowed_token_ids": [1] * VOCABULARY}, "allowed_token_ids"),
        (17, {"allowed_token_ids": [1] * VOCABULARY}, "allowed_token_ids"),
        (1024, {"n": 64, "logprobs": 20}, "prompt"),
        (1024, {"best_of": 64, "logprobs": 1}, "prompt"),
        (1024, {"n": 64, "prompt_logprobs": 20}, "prompt"),
        (1024, {"logprobs": 0, "logprob_token_ids": [1] * 128}, "prompt"),
    ],
)
def test_products_are_bounded_as_well_as_factors(
    num_prompts: int, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(request_codec.BadRequest) as refused:
        check_products(make_body(num_prompts, **fields), num_prompts)
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logit_bias": biases(20_000)}, "logit_bias"),
        ({"stop": ["a"] * 1000}, "stop"),
        ({"bad_words": ["a"] * 1000}, "bad_words"),
        ({"stop_token_ids": [1] * 1000}, "stop_token_ids"),
        ({"logprobs": 1, "logprob_token_ids": [1] * 1000}, "logprob_token_ids"),
        ({"allowed_token_ids": [1] * 1_000}, "allowed_token_ids"),
    ],
)
def test_lists_are_counted_before_any_is_converted(
    fields: dict[str, Any], field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def converted(*_: Any, **__: Any) -> None:
        raise AssertionError("converted")

    monkeypatch.setattr(request_codec, "_logit_biases", converted)
    monkeypatch.setattr(request_codec, "extend_field", converted)
    body = make_body(8, **fields)
    with pytest.raises(InvalidArgument) as refused:
        request_codec.completion_api_request(
            body, ["a"] * 8, map(str, range(8)), model=make_model()
        )
    assert refused.value.field == f"sampling_params.{field}"


async def test_all_prompts_share_one_conversion_and_one_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = {"converted": 0, "checked": 0}
    convert, check = generate_codec.generate_api_request, params_validation.check_sampling_values

    def counting_convert(request: Any) -> Any:
        counts["converted"] += 1
        return convert(request)

    def counting_check(*values: Any) -> None:
        counts["checked"] += 1
        check(*values)

    monkeypatch.setattr(generate_codec, "generate_api_request", counting_convert)
    monkeypatch.setattr(params_validation, "check_sampling_values", counting_check)
    async with make_http() as http:
        answer = await http.complete(["a"] * 100, extra_body={"stop_token_ids": [5, 6]})
        assert [choice.index for choice in answer.choices] == list(range(100))
        assert counts["converted"] == 1
        assert counts["checked"] <= 2  # once more if the router fetches the model meanwhile
        added = http.stack.scheduler.added
        assert len(added) == 100
        assert {tuple(one.sampling_params.stop_token_ids[:2]) for one in added} == {(5, 6)}


async def test_a_handful_of_bytes_is_refused_at_once(http: Http) -> None:
    for fields, param in (
        ({"prompt": ["a"] * 1024, "logit_bias": biases(20_000)}, "logit_bias"),
        ({"prompt": ["a"] * 1024, "logit_bias": biases(2_000)}, "logit_bias"),
        ({"prompt": ["a"] * 64, "allowed_token_ids": list(range(10_000))}, "allowed_token_ids"),
        ({"prompt": ["a"] * 1024, "n": 64, "logprobs": 20}, "prompt"),
        ({"prompt": [[1.5] * 5000] * 20}, "prompt[0][0]"),
    ):
        answer = await http.raw.post("/v1/completions", json={"model": MODEL, **fields})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), error
    assert not http.stack.scheduler.added


def test_the_bound_on_what_is_reported_is_that_of_1024_prompts_with_64_sequences() -> None:
    assert MAX_REPORTED == 1024 * 64
