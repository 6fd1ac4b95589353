"""Fills in the sampling parameters that a request leaves unset."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from signalbox_contract.sampling_defaults import DefaultParams, SamplingDefaults
from signalbox_contract.sampling_params import GREEDY_BELOW, SamplingParams

_NEUTRAL = SamplingParams()
BUILT_IN: Mapping[str, Any] = {
    one.name: getattr(_NEUTRAL, one.name)
    for one in dataclasses.fields(DefaultParams)
    if hasattr(_NEUTRAL, one.name)
} | {"temperature": 1.0}
"""Defaults of inference.proto, for models without their own."""


def with_defaults(fields: Mapping[str, Any], defaults: SamplingDefaults) -> dict[str, Any]:
    """Returns a request's fields with the sampling defaults filled in; `max_tokens` is
    unchanged.

    A request that is greedy, seeded or a beam search expects a reproducible text, so the defaults
    of the model's files do not apply to it. The operator's defaults do, except for beam search,
    which has neither filters nor penalties.
    """
    if "beam_search" in fields:
        return {**BUILT_IN, **fields}
    is_definite = "seed" in fields or fields.get("temperature", 1.0) < GREEDY_BELOW
    of_model = {} if is_definite else defaults.model.fields()
    chosen = {**BUILT_IN, **of_model, **defaults.override.fields()}
    chosen.pop("max_tokens", None)
    return {**chosen, **fields}
