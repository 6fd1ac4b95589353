"""Checks what a router asks for, before it can reach a worker.

A worker refuses a whole step for one bad value in it, which would end the lease and start every
request on that worker again; so what no worker could serve is refused here, alone.
"""

import math

from scheduler_svc.model import ModelInfo
from scheduler_svc.sequence import SamplingParams, SequenceGroup

MAX_PRIORITY = 1000
"""And as far below 0; how long a request may be kept waiting follows from it."""
MAX_LOGPROBS = 128
"""As in the worker's contract."""
MAX_BEAM_WIDTH = 32
MAX_LENGTH_PENALTY = 5.0
"""A longer sequence than any to this power is a float32 still."""


def find_fault(group: SequenceGroup, model: ModelInfo) -> str | None:
    """Says in one line why no worker of the model could serve a request; None if it can be."""
    if group.num_prompt_tokens >= model.max_model_len:
        return (
            f"the prompt has {group.num_prompt_tokens} tokens; the model's window of"
            f" {model.max_model_len} leaves none to generate"
        )
    if max(group.prompt_token_ids) >= model.vocab_size:
        return f"token ids must be below the vocabulary's size, {model.vocab_size}"
    if abs(group.priority) > MAX_PRIORITY:
        return f"priority is {group.priority}, must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}]"
    return _find_fault_in_params(group.params, model) or _find_fault_in_search(group, model)


def _find_fault_in_params(params: SamplingParams, model: ModelInfo) -> str | None:
    most_logprobs = min(MAX_LOGPROBS, model.vocab_size)
    for name, value, is_allowed, allowed in (
        ("temperature", params.temperature, 0 <= params.temperature < math.inf, "finite, >= 0"),
        ("top_p", params.top_p, 0 < params.top_p <= 1, "in (0, 1]"),
        ("min_p", params.min_p, 0 <= params.min_p <= 1, "in [0, 1]"),
        (
            "num_logprobs",
            params.num_logprobs,
            (params.num_logprobs or 0) <= most_logprobs,
            f"at most {most_logprobs}",
        ),
        (
            "stop_token_ids",
            max(params.stop_token_ids, default=0),
            max(params.stop_token_ids, default=0) < model.vocab_size,
            f"below {model.vocab_size}",
        ),
    ):
        if not is_allowed:
            return f"sampling_params.{name} is {value}, must be {allowed}"
    return None


def _find_fault_in_search(group: SequenceGroup, model: ModelInfo) -> str | None:
    search = group.beam_search
    if search is None:
        return None
    width, penalty = search.width, search.length_penalty
    num_stops = len(set(group.params.stop_token_ids))
    most_stops = min(MAX_LOGPROBS, model.vocab_size) - width
    for name, value, is_allowed, allowed in (
        ("beam_search.width", width, 1 <= width <= MAX_BEAM_WIDTH, f"in [1, {MAX_BEAM_WIDTH}]"),
        (
            "beam_search.length_penalty",
            penalty,
            abs(penalty) <= MAX_LENGTH_PENALTY,
            f"in [-{MAX_LENGTH_PENALTY:g}, {MAX_LENGTH_PENALTY:g}]",
        ),
        (
            "num_sequences",
            group.num_sequences,
            group.num_sequences <= width,
            f"at most beam_search.width, {width}",
        ),
        (
            "sampling_params.stop_token_ids",
            f"a list of {num_stops}",
            num_stops <= most_stops,
            f"at most {most_stops} beside {width} beams",
        ),
        (
            "sampling_params.num_logprobs",
            group.params.num_logprobs,
            group.params.num_logprobs is None,
            "unset with beam_search",
        ),
    ):
        if not is_allowed:
            return f"{name} is {value}, must be {allowed}"
    return None
