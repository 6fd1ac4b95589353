"""Reads what is served of a generation_config.json, and refuses the rest by name."""

from typing import Any

import pytest

from signalbox_worker.generation_fields import check_override, default_params, end_token_ids


def test_the_fields_of_a_generation_config_are_read_and_others_left() -> None:
    config = {
        "temperature": 0.6,
        "top_p": 1,
        "top_k": -1,
        "min_p": None,
        "repetition_penalty": 1.05,
        "max_new_tokens": 2048,
        "do_sample": True,
        "transformers_version": "4.51.0",
    }
    assert default_params(config).fields() == {
        "temperature": 0.6,
        "top_p": 1.0,
        "top_k": 0,
        "repetition_penalty": 1.05,
        "max_tokens": 2048,
    }


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"temperature": 2.5}, r"temperature is 2\.5; it must be in \[0, 2\]"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "0.6"}, r"temperature is '0\.6'"),
        ({"top_p": 0}, r"top_p is 0; it must be in \(0, 1\]"),
        ({"min_p": True}, "min_p is True"),
        ({"repetition_penalty": 0.0}, r"repetition_penalty is 0\.0"),
        ({"top_k": 1.5}, r"top_k is 1\.5; it must be an integer of at least 0"),
        ({"top_k": float("inf")}, "top_k is inf"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be an integer of at least 1"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id is"),
        ({"eos_token_id": True}, "eos_token_id is True; it must be a token id"),
        ({"eos_token_id": -2}, "eos_token_id is -2; it must be a token id"),
        ({"eos_token_id": 1 << 32}, "eos_token_id is 4294967296; it must be a token id"),
        ({"eos_token_id": ["2"] * 9999}, r"eos_token_id is \['2', .*\.\.\.; it must be"),
        ({"temperature": 10**400}, r"temperature is 10*\.\.\.; it must be in \[0, 2\]"),
        ({"top_k": -(10**400)}, r"top_k is -10*\.\.\.; it must be an integer"),
    ],
)
def test_values_out_of_range_are_refused_by_name(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        default_params(config)
        end_token_ids(config)
    with pytest.raises(ValueError, match=expected):
        check_override(config)


@pytest.mark.parametrize("config", [[], "temperature", {"top_q": 1}, {"max_tokens": 5}])
def test_an_override_is_an_object_of_known_fields(config: object) -> None:
    with pytest.raises(ValueError, match=r"JSON object|it takes temperature"):
        check_override(config)


def test_end_tokens_are_one_or_many() -> None:
    assert end_token_ids({}) == end_token_ids({"eos_token_id": None}) == set()
    assert end_token_ids({"eos_token_id": 0}) == {0}
    assert end_token_ids({"eos_token_id": [7, 2]}) == end_token_ids({"eos_token_id": [7, -1, 2]})
    assert end_token_ids({"eos_token_id": [7, 2]}) == {2, 7}
    assert end_token_ids({"eos_token_id": -1}) == set()
