"""Fills in the sampling parameters that a request leaves unset."""

from collections.abc import Mapping
from typing import Any

from router.sampling import GREEDY_BELOW
from rpc.sampling_defaults import SamplingDefaults

BUILT_IN: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Defaults of inference.proto, for models without their own."""


def with_defaults(fields: Mapping[str, Any], defaults: SamplingDefaults) -> dict[str, Any]:
    """Returns a request's fields with how to draw filled in; `max_tokens` is left as it is.

    A request that is greedy, seeded or a beam search asks for a definite text, so it gets the same
    with every file that a model comes with. What the operator has set is for it too, but for a beam
    search, which has neither filters nor penalties.
    """
    if "beam_search" in fields:
        return {**BUILT_IN, **fields}
    is_definite = "seed" in fields or fields.get("temperature", 1.0) < GREEDY_BELOW
    of_model = {} if is_definite else defaults.model.fields()
    chosen = {**BUILT_IN, **of_model, **defaults.override.fields()}
    chosen.pop("max_tokens", None)
    return {**chosen, **fields}
