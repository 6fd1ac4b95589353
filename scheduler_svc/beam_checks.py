"""Checks what a router asks of a beam search, before it can reach a worker."""

from collections.abc import Iterator

from rpc.sampling_params import SamplingParams
from scheduler_svc.sequence import SequenceGroup

MAX_BEAM_WIDTH = 32
MAX_LENGTH_PENALTY = 5.0
"""A sequence longer than any, to this power, is a float32 still."""

_NEUTRAL = SamplingParams()
_NOT_WITH_BEAMS = (
    "num_logprobs",
    "logprob_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "structured_output",
)
"""What a search, which goes by what the model says of tokens, could not honour."""


def find_fault_in_search(group: SequenceGroup, *, most_logprobs: int) -> str | None:
    """Says in one line why a search cannot be served; None if it can be, or none is asked for.

    A beam reports no more candidates than `most_logprobs`.
    """
    if group.beam_search is None:
        return None
    return next(_faults(group, most_logprobs), None)


def _faults(group: SequenceGroup, most_logprobs: int) -> Iterator[str]:
    assert group.beam_search is not None
    width, penalty = group.beam_search.width, group.beam_search.length_penalty
    if not 1 <= width <= MAX_BEAM_WIDTH:
        yield f"beam_search.width is {width}, must be in [1, {MAX_BEAM_WIDTH}]"
    if not abs(penalty) <= MAX_LENGTH_PENALTY:
        allowed = f"[-{MAX_LENGTH_PENALTY:g}, {MAX_LENGTH_PENALTY:g}]"
        yield f"beam_search.length_penalty is {penalty}, must be in {allowed}"
    if group.num_sequences > width:
        yield f"num_sequences is {group.num_sequences}, must be at most beam_search.width, {width}"
    num_stops, most = len(set(group.params.stop_token_ids)), most_logprobs - width
    if num_stops > most:
        yield (
            f"sampling_params.stop_token_ids has {num_stops} tokens, must be at most {most}"
            f" beside {width} beams"
        )
    for name in _NOT_WITH_BEAMS:
        if (value := getattr(group.params, name)) != getattr(_NEUTRAL, name):
            yield f"sampling_params.{name} is {value}, must be unset with beam_search"
