"""The settings of speculation, in vLLM's form: whether a worker drafts tokens, and from what."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BeforeValidator, Field

from signalbox_contract.sections.drafts import MAX_DRAFT_TOKENS
from signalbox_rpc.settings.quantities import from_json, json_text
from signalbox_rpc.settings.service_settings import SettingsGroup
from signalbox_worker.config import SpeculationConfig

USUAL_DRAFT_TOKENS = 8
"""Default of the most drafts of a sequence in a step."""
_NGRAM, _SUFFIX = "ngram", "suffix"
_USUAL_LOOKUP = 5
"""vLLM's prompt_lookup_max and prompt_lookup_min of the method ngram."""
_USUAL_TREE_DEPTH = 24
"""vLLM's suffix_decoding_max_tree_depth, and its num_speculative_tokens of the method suffix."""
_MAX_LOOKUP = 1024
_MOST = {
    "num_speculative_tokens": MAX_DRAFT_TOKENS,
    "prompt_lookup_max": _MAX_LOOKUP,
    "prompt_lookup_min": _MAX_LOOKUP,
    "suffix_decoding_max_tree_depth": _MAX_LOOKUP,
}
"""Largest values of numbers, which are at least 1."""
_FIELDS = ("method", "model", *_MOST)
"""Fields of vLLM's SpeculativeConfig that are read."""
_FOLLOWS = "the number of drafts follows how many were kept"
_METHODS = f"method may be {_NGRAM} or {_SUFFIX}, which draft from a sequence's own text"
_OF_NGRAM = ("prompt_lookup_max", "prompt_lookup_min")
_OF_SUFFIX = ("suffix_decoding_max_tree_depth",)
_WITHOUT_EFFECT = {
    "suffix_decoding_max_cached_requests": "drafts come from a sequence's own text alone",
    "suffix_decoding_max_spec_factor": _FOLLOWS,
    "suffix_decoding_min_token_prob": _FOLLOWS,
    "num_speculative_tokens_per_batch_size": _FOLLOWS,
}
"""Fields that only tune vLLM's speed, and why they are not needed."""


def speculation_of(given: Mapping[str, Any]) -> SpeculationConfig:
    """Returns what the fields of vLLM's SpeculativeConfig ask for.

    Raises ValueError that names the field.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    if unknown := fields.keys() - {*_FIELDS, *_WITHOUT_EFFECT}:
        raise ValueError(f"it has {min(unknown)!r}, which is not served; {_takes()}")
    for name in ("method", "model"):
        if (value := fields.get(name)) not in (None, _NGRAM, _SUFFIX):
            raise ValueError(
                f"{name} {value!r} is not served: no other model drafts, and no layers for it"
                f" (MTP, EAGLE, Medusa); {_METHODS}"
            )
    _check_numbers(fields)
    method = _method(fields)
    if method is None:
        raise ValueError(f"it has no method; {_METHODS}")
    return _ngram(fields) if method == _NGRAM else _suffix(fields)


def _takes() -> str:
    return f"it takes {', '.join((*_FIELDS, *_WITHOUT_EFFECT))}"


def _method(fields: Mapping[str, Any]) -> Any:
    return fields.get("method") or fields.get("model")


def _ngram(fields: Mapping[str, Any]) -> SpeculationConfig:
    longest, shortest = fields.get("prompt_lookup_max"), fields.get("prompt_lookup_min")
    max_match = longest or shortest or _USUAL_LOOKUP
    min_match = shortest or longest or _USUAL_LOOKUP
    if min_match > max_match:
        raise ValueError(f"prompt_lookup_min is {min_match}, above prompt_lookup_max ({max_match})")
    return SpeculationConfig(
        num_tokens=fields.get("num_speculative_tokens", USUAL_DRAFT_TOKENS),
        min_match=min_match,
        max_match=max_match,
    )


def _suffix(fields: Mapping[str, Any]) -> SpeculationConfig:
    usual = SpeculationConfig()
    max_match = fields.get("suffix_decoding_max_tree_depth", _USUAL_TREE_DEPTH)
    return SpeculationConfig(
        num_tokens=fields.get("num_speculative_tokens", min(max_match, MAX_DRAFT_TOKENS)),
        min_match=min(usual.min_match, max_match),
        max_match=max_match,
    )


def _check_numbers(fields: Mapping[str, Any]) -> None:
    for name, most in _MOST.items():
        value = fields.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 to {most}")


def _checked(text: str) -> str:
    fields = from_json(text)
    if not isinstance(fields, Mapping):
        raise ValueError('it must be a JSON object, such as {"method": "suffix"}')
    speculation_of(fields)
    return text


SpeculativeConfig = Annotated[str, BeforeValidator(json_text), AfterValidator(_checked)]
"""Fields of vLLM's SpeculativeConfig as text."""


class SpeculationSettings(SettingsGroup):
    """Drafts: tokens that a worker expects next, computed early and kept if they are drawn."""

    GROUP: ClassVar[str] = "model and device"

    speculation: bool | None = Field(
        None,
        description="compute drafts, the tokens that a sequence is expected to have next, in the"
        " step of its last token, and keep those that are drawn: output stays the same;"
        " --no-speculation turns --speculative-config off (default: off, unless"
        " --speculative-config is given)",
    )
    speculative_config: SpeculativeConfig | None = Field(
        None,
        description="JSON object as vLLM's, which turns speculation on: method is ngram or suffix,"
        " num_speculative_tokens is the most drafts of a sequence in a step, up to"
        f" {MAX_DRAFT_TOKENS}; prompt_lookup_min and prompt_lookup_max, or"
        " suffix_decoding_max_tree_depth, bound how many of its newest tokens are looked up in"
        " its text",
    )

    @property
    def speculation_config(self) -> SpeculationConfig:
        if self.speculation is False:
            return SpeculationConfig()
        if self.speculative_config is not None:
            return speculation_of(json.loads(self.speculative_config))
        return SpeculationConfig(num_tokens=USUAL_DRAFT_TOKENS if self.speculation else 0)

    @property
    def speculation_notices(self) -> list[str]:
        """Lines about fields of `speculative_config` that have no effect."""
        given = json.loads(self.speculative_config or "{}")
        others = _OF_SUFFIX if _method(given) == _NGRAM else _OF_NGRAM
        without = _WITHOUT_EFFECT | dict.fromkeys(others, "it is of the other method")
        return [
            f"speculative_config: {name} has no effect: {why}"
            for name, why in without.items()
            if given.get(name) is not None
        ]
