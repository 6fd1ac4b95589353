"""Receipts as documents."""

import json
from typing import Any

import pytest

from signalbox_contract.request import DeliveredSequence
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.structured_output.grammar_cost import GrammarCost
from signalbox_contract.updates import FinishReason
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.receipts.receipt_codec import (
    Receipt,
    ReceiptError,
    decode,
    encode,
    signed_part,
)


def make_receipt(**sampling: Any) -> Receipt:
    params = GenerationParams(
        sampling=SamplingParams(**{"seed": (1 << 64) - 1, "temperature": 1.0} | sampling),
        max_tokens=9,
        stop=("end", "東京"),
        n=2,
        skip_special_tokens=False,
    )
    return Receipt(
        request_id="cmpl-1",
        created=1_700_000_000,
        version="0.2.0",
        model="tiny",
        fingerprint="f" * 64,
        adapter="",
        arithmetic="a" * 64,
        prompt_token_ids=(1, 2, 3),
        params=params,
        kept_token_ids=(7,),
        outputs=(
            DeliveredSequence([4, 5], FinishReason.LENGTH),
            DeliveredSequence([6], FinishReason.STOP_STRING),
        ),
    )


def test_a_receipt_says_what_was_asked_and_computed() -> None:
    receipt = make_receipt(
        top_p=0.5,
        stop_token_ids=(2,),
        logit_bias=((5, -1.5),),
        bad_words=((1, 2), (3,)),
        structured_output=("regex", "a+"),
        presence_penalty=0.25,
    )
    assert decode(json.loads(json.dumps(encode(receipt)))) == receipt


def test_what_decides_no_token_is_left_out() -> None:
    asked = {"num_logprobs": 3, "num_prompt_logprobs": 1, "grammar_cost": GrammarCost(5, 6)}
    assert encode(make_receipt(**asked)) == encode(make_receipt())


def test_a_signature_covers_a_document_that_a_program_in_javascript_has_written() -> None:
    """It writes 1.0 as 1, and keeps no order."""
    document = encode(make_receipt(temperature=1.0, min_p=0.0, top_p=0.9))
    assert ".0" not in json.dumps(document["parameters"])
    turned = dict(reversed(document.items()))
    assert signed_part(turned | {"signature": {}}) == signed_part(document)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"form": 2}, "form is 2"),
        ({"form": True}, "form is True"),
        ({"model": 5}, "model is '5'"),
        ({"created": True}, "created is 'True'"),
        ({"prompt_token_ids": []}, "prompt_token_ids is empty"),
        ({"prompt_token_ids": [1, "2"]}, "prompt_token_ids"),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids has an id outside"),
        ({"prompt_token_ids": [1 << 31]}, "prompt_token_ids has an id outside"),
        ({"parameters": []}, "parameters"),
        ({"outputs": []}, "outputs has 0 sequences, and n is 2"),
        ({"outputs": [{"token_ids": [1], "finish_reason": "bored"}] * 2}, "'bored'"),
    ],
)
def test_what_is_no_receipt_is_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ReceiptError, match=named):
        decode(encode(make_receipt()) | changes)


def test_an_empty_stop_string_is_refused() -> None:
    document = encode(make_receipt())
    document["parameters"]["stop"] = ["end", ""]
    with pytest.raises(ReceiptError, match="stop has an empty text"):
        decode(document)


@pytest.mark.parametrize(
    "sampling",
    [None, {"unheard_of": 1}, {"temperature": "hot"}, {"bad_words": ["\ud800"]}],
)
def test_unknown_parameters_are_refused(sampling: object) -> None:
    document = encode(make_receipt())
    document["parameters"]["sampling"] = sampling
    with pytest.raises(ReceiptError, match="sampling"):
        decode(document)
