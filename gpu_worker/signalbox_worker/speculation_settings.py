"""The settings of speculation, in vLLM's form: whether a worker drafts tokens, and from what."""

import json
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from signalbox_contract.sections.drafts import MAX_DRAFT_TOKENS, DraftSource
from signalbox_rpc.settings.quantities import from_json, json_text
from signalbox_rpc.settings.service_settings import SettingsGroup
from signalbox_worker.config import SpeculationConfig

PROPOSERS = "signalbox.draft_proposers"
"""Group of the entry points by which packages bring methods; each is called like its method."""
USUAL_DRAFT_TOKENS = 8
"""Default of the most drafts of a sequence in a step."""
_NGRAM, _SUFFIX, _DRAFT_MODEL = "ngram", "suffix", "draft_model"
_MTP = "mtp"
_MTP_NAMES = (
    *("deepseek_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp"),
    *("qwen3_5_mtp", "qwen3_next_mtp"),
)
"""Names that vLLM also has for it, of the families whose MTP layers draft here."""
_MTP_DRAFT_TOKENS = 1
"""vLLM's default: as many as a checkpoint of these families has MTP layers."""
_NONE = "none"
"""Method without drafts; llama.cpp's."""
_USUAL_LOOKUP = 5
"""vLLM's prompt_lookup_max and prompt_lookup_min of the method ngram."""
_USUAL_TREE_DEPTH = 24
"""vLLM's suffix_decoding_max_tree_depth, and its num_speculative_tokens of the method suffix."""
_MATCH_BESIDE_MODEL = 8
"""Least match for which drafts come from a text where a model could draft: shorter ones are less
often right than it."""
_MAX_LOOKUP = 1024
_MOST = {
    "num_speculative_tokens": MAX_DRAFT_TOKENS,
    "prompt_lookup_max": _MAX_LOOKUP,
    "prompt_lookup_min": _MAX_LOOKUP,
    "suffix_decoding_max_tree_depth": _MAX_LOOKUP,
}
"""Largest values of numbers, which are at least 1."""
_TEXTS = ("method", "model", "revision")
_FIELDS = (*_TEXTS, *_MOST)
"""Fields of vLLM's SpeculativeConfig that are read."""
_FOLLOWS = "the number of drafts follows how many were kept"
_METHODS = (
    f"method may be {_NGRAM} or {_SUFFIX}, which draft from a sequence's own text,"
    f" {_DRAFT_MODEL}, which takes a model, or {_MTP}, for a model with an MTP layer"
)
_OF_METHOD = {
    _NGRAM: ("prompt_lookup_max", "prompt_lookup_min"),
    _SUFFIX: ("suffix_decoding_max_tree_depth",),
    _DRAFT_MODEL: ("revision",),
    _MTP: (),
}
"""Fields of one method alone."""
_WITHOUT_EFFECT = {
    "suffix_decoding_max_cached_requests": "--recent-outputs bounds what is kept of other requests",
    "suffix_decoding_max_spec_factor": _FOLLOWS,
    "suffix_decoding_min_token_prob": _FOLLOWS,
    "num_speculative_tokens_per_batch_size": _FOLLOWS,
    "draft_tensor_parallel_size": "rank 0 computes the draft model",
}
"""Fields that only tune vLLM's speed, and why they are not needed."""


def speculation_of(given: Mapping[str, Any]) -> SpeculationConfig:
    """Returns what the fields of vLLM's SpeculativeConfig ask for.

    Raises ValueError that names the field.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    if unknown := fields.keys() - {*_FIELDS, *_WITHOUT_EFFECT}:
        raise ValueError(f"it has {min(unknown)!r}, which is not served; {_takes()}")
    _check_texts(fields)
    _check_numbers(fields)
    if _is_of_a_package(fields.get("method")):
        return _of_package(fields)
    method = _method(fields)
    if method is None:
        raise ValueError(f"it has no method; {_METHODS}")
    if method == _NONE:
        return SpeculationConfig()
    if method not in _OF_METHOD:
        raise ValueError(
            f"method {method!r} is not served: layers that are trained for a model apart (EAGLE,"
            f" Medusa) do not draft, and no installed package brings it; {_METHODS}"
        )
    if method == _DRAFT_MODEL:
        return _draft_model(fields)
    if (model := fields.get("model", method)) != method:
        raise ValueError(f"model {model!r} is not used by the method {method}; leave it out")
    if method == _MTP:
        num_tokens = fields.get("num_speculative_tokens", _MTP_DRAFT_TOKENS)
        return SpeculationConfig(num_tokens=num_tokens, min_match=_MATCH_BESIDE_MODEL, mtp=True)
    return _ngram(fields) if method == _NGRAM else _suffix(fields)


def _takes() -> str:
    return f"it takes {', '.join((*_FIELDS, *_WITHOUT_EFFECT))}"


def _method(fields: Mapping[str, Any]) -> Any:
    """Returns the method; as in vLLM, a model alone is a draft model, or the name of a method."""
    method, model = fields.get("method"), fields.get("model")
    if method is None and model is not None:
        return model if model in (_NGRAM, _SUFFIX) else _DRAFT_MODEL
    return _MTP if method in _MTP_NAMES else method


def _draft_model(fields: Mapping[str, Any]) -> SpeculationConfig:
    model = fields.get("model")
    if model is None:
        raise ValueError(f"it has no model, which the method {_DRAFT_MODEL} takes")
    return SpeculationConfig(
        num_tokens=fields.get("num_speculative_tokens", USUAL_DRAFT_TOKENS),
        min_match=_MATCH_BESIDE_MODEL,
        model=model,
        revision=fields.get("revision"),
    )


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


def _check_texts(fields: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        value = fields.get(name, name)
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name} is {value!r}; it must be text")


def _of_package(fields: Mapping[str, Any]) -> SpeculationConfig:
    if "model" in fields:
        raise ValueError(f"model has no meaning for the method {fields['method']!r} of a package")
    return SpeculationConfig(
        num_tokens=fields.get("num_speculative_tokens", USUAL_DRAFT_TOKENS),
        sources=(DraftSource.GRAMMAR, DraftSource.PREDICTION, DraftSource.PACKAGE),
        method=fields["method"],
    )


def _is_of_a_package(method: Any) -> bool:
    is_ours = method is None or method in _OF_METHOD
    return isinstance(method, str) and not is_ours and find_method(method) is not None


def find_method(method: str) -> EntryPoint | None:
    """Returns the entry point by which a package brings a method; None if none does."""
    return next(iter(entry_points(group=PROPOSERS, name=method)), None)


def _check_numbers(fields: Mapping[str, Any]) -> None:
    for name, most in _MOST.items():
        value = fields.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ValueError(f"{name} is {value!r}; it must be a whole number from 1 to {most}")


def _json_object(text: str) -> str:
    if not isinstance(from_json(text), Mapping):
        raise ValueError('it must be a JSON object, such as {"method": "suffix"}')
    return text


SpeculativeConfig = Annotated[str, BeforeValidator(json_text), AfterValidator(_json_object)]
"""Fields of vLLM's SpeculativeConfig as text."""


class SpeculationSettings(SettingsGroup):
    """Drafts: tokens that a worker expects next, computed early and kept if they are drawn."""

    GROUP: ClassVar[str] = "model and device"

    speculation: bool | None = Field(
        None,
        description="compute drafts, the tokens that a sequence is expected to have next, in the"
        " step of its last token, and keep those that are drawn: output stays the same;"
        " --no-speculation turns --speculative-config and --draft-model off (default: on where"
        " a row's bits do not depend on its batch, as in native code on CPUs)",
    )
    speculative_config: SpeculativeConfig | None = Field(
        None,
        description="JSON object as vLLM's: method is ngram, suffix,"
        " draft_model, mtp (the MTP layer of the model), or one that an installed package brings;"
        " num_speculative_tokens is the most drafts of a sequence in a step, up to"
        f" {MAX_DRAFT_TOKENS}; prompt_lookup_min and prompt_lookup_max, or"
        " suffix_decoding_max_tree_depth, bound how many of its newest tokens are looked up in"
        " its text; model is that of --draft-model, and revision its branch, tag or commit",
    )
    recent_outputs: int = Field(
        0,
        ge=0,
        le=1 << 20,
        description="MiB of RAM in which speculation keeps the outputs of recent requests, for"
        " drafts of later requests of the same tenant, cache salt and adapter; 0 keeps none",
    )
    draft_model: str | None = Field(
        None,
        min_length=1,
        description="small model with the same tokenizer, a GGUF file, a Hugging Face directory or"
        " a hub id, whose likeliest tokens are drafts",
    )

    @property
    def _speculative_fields(self) -> dict[str, Any]:
        given: dict[str, Any] = json.loads(self.speculative_config or "{}")
        if self.draft_model is None:
            return given
        return {"method": _DRAFT_MODEL} | given | {"model": self.draft_model}

    @property
    def _asked(self) -> SpeculationConfig | None:
        """Drafts that the fields ask for; None if no field is given. Raises ValueError."""
        if self.speculative_config is None and self.draft_model is None:
            return None
        fields, model = self._speculative_fields, self.draft_model
        named = json.loads(self.speculative_config or "{}").get("model", model)
        if model is not None and named not in (model, None):
            raise ValueError(f"model is {named!r}, and draft_model {model!r}; leave one out")
        return speculation_of(fields)

    @property
    def speculation_config(self) -> SpeculationConfig:
        if self.speculation is False:
            return SpeculationConfig()
        asked = self._asked or SpeculationConfig(
            num_tokens=USUAL_DRAFT_TOKENS, is_default=self.speculation is None
        )
        if not (asked.num_tokens and self.recent_outputs):
            return asked
        sources = (*asked.sources, DraftSource.RECENT)
        return replace(asked, sources=sources, recent_bytes=self.recent_outputs << 20)

    @property
    def speculation_notices(self) -> list[str]:
        """Lines about settings and fields of `speculative_config` that have no effect."""
        given = self._speculative_fields
        own = _OF_METHOD.get(_method(given), ())
        others = [name for name in chain(*_OF_METHOD.values()) if name not in own]
        without = _WITHOUT_EFFECT | dict.fromkeys(others, "it is of another method")
        notices = [
            f"speculative_config: {name} has no effect: {why}"
            for name, why in without.items()
            if given.get(name) is not None
        ]
        if self.recent_outputs and not self.speculation_config.num_tokens:
            notices.append("recent_outputs has no effect: there is no speculation")
        return notices

    @model_validator(mode="after")
    def _asks_for_what_is_served(self) -> Self:
        try:
            _ = self._asked
        except ValueError as error:
            raise ValueError(f"speculative_config: {error}") from None
        return self
