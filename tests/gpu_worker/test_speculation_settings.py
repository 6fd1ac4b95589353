"""What vLLM's SpeculativeConfig and the switch make of a worker's drafts."""

import json
from dataclasses import replace
from typing import Any

import pytest

from signalbox_contract.sections.drafts import MAX_DRAFT_TOKENS, DraftSource
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.service.worker_settings import WorkerSettings
from signalbox_worker.speculation_settings import USUAL_DRAFT_TOKENS

OFF = SpeculationConfig()


def made(**settings: Any) -> SpeculationConfig:
    return WorkerSettings(simulate=True, **settings).speculation_config


def test_nobody_has_to_ask_for_drafts() -> None:
    asked = {"speculative_config": {"method": "suffix"}}
    assert made() == SpeculationConfig(num_tokens=USUAL_DRAFT_TOKENS, is_default=True)
    assert made(speculation=True) == SpeculationConfig(num_tokens=USUAL_DRAFT_TOKENS)
    assert made(**asked).num_tokens == made(speculation=True, **asked).num_tokens == 24
    assert made(speculation=False, **asked) == OFF
    assert made(speculative_config={"method": "none"}) == OFF, "as llama.cpp's --spec-type"


@pytest.mark.parametrize(
    ("lookup", "least", "most"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 7}, 7, 7),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_min": 1, "prompt_lookup_max": 4}, 1, 4),
    ],
)
def test_ngrams_are_looked_up_as_in_vllm(lookup: dict[str, int], least: int, most: int) -> None:
    config = made(speculative_config={"method": "ngram", "num_speculative_tokens": 3, **lookup})
    assert config == SpeculationConfig(num_tokens=3, min_match=least, max_match=most)


def test_mtp_has_vllms_names_and_default() -> None:
    asked = made(speculative_config={"method": "mtp"})
    assert (asked.num_tokens, asked.mtp, asked.model) == (1, True, "")
    for method in ("glm4_moe_mtp", "qwen3_5_mtp"):
        fields = {"method": method, "num_speculative_tokens": 3}
        assert made(speculative_config=fields) == replace(asked, num_tokens=3)


def test_suffixes_have_vllms_depth() -> None:
    assert made(speculative_config={"model": "suffix"}).max_match == 24
    deep = made(speculative_config={"method": "suffix", "suffix_decoding_max_tree_depth": 500})
    assert (deep.num_tokens, deep.max_match) == (MAX_DRAFT_TOKENS, 500)
    flat = made(speculative_config={"method": "suffix", "suffix_decoding_max_tree_depth": 1})
    assert (flat.num_tokens, flat.min_match, flat.max_match) == (1, 1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "draft_model"}, "it has no model, which the method draft_model takes"),
        ({"method": "ngram", "model": "org/small"}, "model 'org/small' is not used by the method"),
        ({"method": "mtp", "model": "org/small"}, "is not used by the method mtp"),
        ({"method": "eagle", "num_speculative_tokens": 1}, "method 'eagle' is not served"),
        ({"method": ["ngram"]}, r"method is \['ngram'\]; it must be text"),
        ({"model": ""}, "model is ''; it must be text"),
        ({"num_speculative_tokens": 3}, "it has no method; method may be ngram or suffix"),
        ({}, "it has no method; method may be ngram or suffix"),
        ({"method": None}, "it has no method"),
        ({"method": "ngram", "quantization": "fp8"}, "it has 'quantization', which is not served"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
        ({"method": "ngram", "num_speculative_tokens": 65}, "from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens is True"),
        ({"method": "ngram", "prompt_lookup_max": "5"}, "prompt_lookup_max is '5'"),
        ({"method": "ngram", "prompt_lookup_min": 0}, "prompt_lookup_min is 0"),
        (
            {"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 4},
            r"prompt_lookup_min is 5, above prompt_lookup_max \(4\)",
        ),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 0}, "tree_depth is 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(fields: dict[str, Any], message: str) -> None:
    for form in (fields, json.dumps(fields)):
        with pytest.raises(ValueError, match=message):
            made(speculative_config=form)


def test_fields_that_only_tune_vllm_are_told() -> None:
    fields = {
        "method": "suffix",
        "suffix_decoding_min_token_prob": 0.2,
        "suffix_decoding_max_spec_factor": None,
    }
    settings = WorkerSettings(simulate=True, speculative_config=fields)  # type: ignore[arg-type]
    assert settings.speculation_notices == [
        "speculative_config: suffix_decoding_min_token_prob has no effect:"
        " the number of drafts follows how many were kept"
    ]


@pytest.mark.parametrize(
    ("method", "other"),
    [("ngram", "suffix_decoding_max_tree_depth"), ("suffix", "prompt_lookup_min")],
)
def test_fields_of_other_methods_are_told(method: str, other: str) -> None:
    own = {"ngram": "prompt_lookup_max", "suffix": "suffix_decoding_max_tree_depth"}[method]
    fields = {"method": method, own: 7, other: 6}
    settings = WorkerSettings(simulate=True, speculative_config=fields)  # type: ignore[arg-type]
    assert settings.speculation_notices == [
        f"speculative_config: {other} has no effect: it is of another method"
    ]


def test_recent_outputs_are_a_source_where_there_is_speculation() -> None:
    config = made(speculation=True, recent_outputs=3)
    assert config.sources == (*SpeculationConfig().sources, DraftSource.RECENT)
    assert config.recent_bytes == 3 << 20
    settings = WorkerSettings(simulate=True, recent_outputs=3, speculation=False)
    assert settings.speculation_config == OFF
    assert settings.speculation_notices == ["recent_outputs has no effect: there is no speculation"]


def test_a_model_gets_the_settings() -> None:
    settings = WorkerSettings(model="m.gguf", speculation=True)
    assert settings.runner_config.speculation.num_tokens == USUAL_DRAFT_TOKENS


@pytest.mark.parametrize(
    "given",
    [
        {"draft_model": "org/small"},
        {"speculative_config": {"method": "draft_model", "model": "org/small"}},
        {"speculative_config": {"model": "org/small"}},
        {"speculative_config": {"method": "draft_model"}, "draft_model": "org/small"},
    ],
)
def test_a_draft_model_is_named_in_either_way(given: dict[str, Any]) -> None:
    settings = WorkerSettings(model="m.gguf", **given)
    expected = SpeculationConfig(num_tokens=USUAL_DRAFT_TOKENS, min_match=8, model="org/small")
    assert settings.runner_config.speculation == expected
    assert WorkerSettings(model="m.gguf", speculation=False, **given).speculation_config == OFF


def test_a_draft_model_has_a_revision_and_a_number_of_drafts() -> None:
    fields = {"num_speculative_tokens": 3, "revision": "v1", "draft_tensor_parallel_size": 1}
    settings = WorkerSettings(
        model="m.gguf",
        draft_model="org/small",
        speculative_config=fields,  # type: ignore[arg-type]
    )
    config = settings.speculation_config
    assert (config.num_tokens, config.model, config.revision) == (3, "org/small", "v1")
    assert settings.speculation_notices == [
        "speculative_config: draft_tensor_parallel_size has no effect:"
        " rank 0 computes the draft model"
    ]


def test_a_draft_model_goes_neither_with_another_method_nor_with_a_simulation() -> None:
    with pytest.raises(ValueError, match="model 'org/small' is not used by the method ngram"):
        WorkerSettings(
            model="m.gguf",
            draft_model="org/small",
            speculative_config={"method": "ngram"},  # type: ignore[arg-type]
        )
    with pytest.raises(ValueError, match="--simulate has no draft model"):
        made(draft_model="org/small")


def test_two_draft_models_are_refused() -> None:
    named = {"method": "draft_model", "model": "org/other"}
    with pytest.raises(ValueError, match="model is 'org/other', and draft_model 'org/small'"):
        made(speculative_config=named, draft_model="org/small")
