"""The ranges that users read are those of `signalbox_contract.sampling_params`."""

import re

import pytest

from signalbox_contract.sampling_params import API_LIMITS, LIMITS
from signalbox_router.apis.openai.requests.chat_types import ChatBody
from signalbox_router.apis.openai.requests.types import CompletionBody
from tests.docs.blocks import ROOT


def comments(path: str, message: str) -> dict[str, str]:
    """Returns the comment of each field of a message."""
    text = (ROOT / path).read_text(encoding="utf-8")
    body = text.partition(f"message {message} {{")[2].partition("\n}")[0]
    found = re.findall(r"((?: *//.*\n)+) *(?:optional |repeated )?\w+ (\w+) = \d+;", body)
    return {name: " ".join(comment.replace("//", " ").split()) for comment, name in found}


BOUNDED = [name for name, one in API_LIMITS.items() if one.most < 1000 and name != "best_of"]


@pytest.mark.parametrize("name", BOUNDED)
def test_the_range_of_a_parameter_is_documented(name: str) -> None:
    body = (ChatBody.model_fields | CompletionBody.model_fields)[name].description or ""
    api = comments("protos/signalbox_protos/inference/v1/inference.proto", "SamplingParams")[name]
    described = [api, body]
    if LIMITS.get(name) == API_LIMITS[name]:
        described.append(
            comments("protos/signalbox_protos/common/v1/common.proto", "SamplingParams")[name]
        )
    assert all(str(API_LIMITS[name]) in text for text in described)
