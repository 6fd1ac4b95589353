"""Checks whether the workers pool what a request wants pooled, and how."""

from collections.abc import Iterator

from signalbox_contract.model import ModelInfo
from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.request import Request


def find_fault_in_pooling(request: Request, model: ModelInfo) -> str | None:
    """Returns in one line why a request cannot be pooled, or must be; None if all is well."""
    if (request.pooling is None) is not (model.pooling is None):
        if request.pooling is None:
            return "pooling is unset, must be set: the model makes vectors and generates nothing"
        return "pooling is set, must be unset: the model generates and makes no vectors"
    if request.pooling is None or model.pooling is None:
        return None
    return next(_faults(request, request.pooling, model.pooling), None)


def _faults(request: Request, params: PoolingParams, model: PoolingModel) -> Iterator[str]:
    num_prompt_tokens = len(request.prompt_token_ids)
    for name, value in (
        ("num_sequences", request.num_sequences),
        ("max_tokens", request.max_tokens),
    ):
        if value != 1:
            yield f"{name} is {value}, must be 1 with pooling"
    for name, is_set in (
        ("beam_search", request.beam_search is not None),
        ("delivered", bool(request.delivered)),
        ("structured_output", request.params.structured_output is not None),
        ("num_logprobs", request.params.num_logprobs is not None),
        ("num_prompt_logprobs", request.params.num_prompt_logprobs is not None),
    ):
        if is_set:
            yield f"{name} is set, must be unset with pooling"
    if params.num_first_segment_tokens and not model.reads_all_tokens:
        yield (
            "pooling.num_first_segment_tokens is set, must be unset: prompts of the model share"
            " cached blocks, whose tokens are of one segment"
        )
    for name, value, most in (
        ("num_first_segment_tokens", params.num_first_segment_tokens, num_prompt_tokens),
        ("num_skipped_tokens", params.num_skipped_tokens, num_prompt_tokens - 1),
    ):
        if value > most:
            yield f"pooling.{name} is {value}, must be at most {most}"
