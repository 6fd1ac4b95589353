"""Checks the options for several sequences: best_of and beam search."""

from collections.abc import Mapping
from typing import Any

from contract.errors import InvalidArgument
from contract.request import BeamSearchParams

MAX_SEQUENCES = 64
MAX_BEAM_WIDTH = 32
MAX_LENGTH_PENALTY = 5.0

_NOT_WITH_BEAMS: Mapping[str, object] = {
    "best_of": None,
    "stop": (),
    "logprobs": None,
    "logprob_token_ids": (),
    "structured_output": None,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "logit_bias": (),
    "allowed_token_ids": (),
    "bad_words": (),
}
"""Fields that beam search cannot support, and their neutral values: the search uses the log
probabilities of tokens alone, and no text ends a hypothesis."""


def check_sequences(fields: Mapping[str, Any]) -> None:
    """Checks the number of sequences, and the options of beam search."""
    n = fields.get("n", 1)
    best_of = fields.get("best_of")
    if best_of is not None and not n <= best_of <= MAX_SEQUENCES:
        raise InvalidArgument("sampling_params.best_of", best_of, f"in [n, {MAX_SEQUENCES}]")
    if "beam_search" in fields:
        _check_beam_search(fields["beam_search"], n=n)
        _check_that_beams_can_honour(fields)


def _check_beam_search(search: Mapping[str, Any], *, n: int) -> None:
    where, width = "sampling_params.beam_search", search.get("width", 0)
    if not 1 <= width <= MAX_BEAM_WIDTH:
        raise InvalidArgument(f"{where}.width", width, f"in [1, {MAX_BEAM_WIDTH}]")
    penalty = search.get("length_penalty", 1.0)
    if not abs(penalty) <= MAX_LENGTH_PENALTY:
        allowed = f"in [-{MAX_LENGTH_PENALTY:g}, {MAX_LENGTH_PENALTY:g}]"
        raise InvalidArgument(f"{where}.length_penalty", penalty, allowed)
    if n > width:
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
