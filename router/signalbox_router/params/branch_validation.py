"""Checks the options for several sequences: best_of and beam search."""

from collections.abc import Mapping
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.request import BEAM_LIMITS, NOT_WITH_BEAMS, BeamSearchParams
from signalbox_contract.sampling_params import SamplingParams

_NEUTRAL = SamplingParams()
_NOT_WITH_BEAMS: Mapping[str, object] = {
    "best_of": None,
    "stop": (),
    "logprobs": None,
    "prediction": None,
    **{name: getattr(_NEUTRAL, name) for name in NOT_WITH_BEAMS},
}
"""Fields that beam search cannot support, and their neutral values; no text ends a hypothesis."""


def check_sequences(fields: Mapping[str, Any]) -> None:
    """Checks the number of sequences, and the options of beam search."""
    n = fields.get("n", 1)
    best_of = fields.get("best_of")
    if best_of is not None and best_of < n:
        raise InvalidArgument("sampling_params.best_of", best_of, f"at least n, here {n}")
    if "beam_search" in fields:
        _check_beam_search(fields["beam_search"], n=n)
        _check_that_beams_can_honour(fields)


def _check_beam_search(search: Mapping[str, Any], *, n: int) -> None:
    given = {"width": 0, **search}
    for name, limit in BEAM_LIMITS.items():
        if name in given:
            limit.check(f"sampling_params.beam_search.{name}", given[name])
    if n > (width := given["width"]):
        raise InvalidArgument("sampling_params.n", n, f"at most the search's width, here {width}")


def _check_that_beams_can_honour(fields: Mapping[str, Any]) -> None:
    for name, neutral in _NOT_WITH_BEAMS.items():
        value = fields.get(name, neutral)
        is_empty = neutral == () and not value
        if value != neutral and not is_empty:
            raise InvalidArgument(f"sampling_params.{name}", value, "unset with beam_search")


def beam_search(fields: Mapping[str, Any]) -> BeamSearchParams | None:
    """Returns the checked beam search with its defaults applied, or None."""
    search = fields.get("beam_search")
    if search is None:
        return None
    return BeamSearchParams(
        width=search["width"],
        length_penalty=search.get("length_penalty", 1.0),
        early_stopping=search.get("early_stopping", False),
    )
