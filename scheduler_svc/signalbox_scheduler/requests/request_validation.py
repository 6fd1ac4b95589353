"""Checks what a router asks for, before it can reach a worker.

A worker refuses a whole step for one bad value in it, which would end the lease and start every
request on that worker again; so what no worker could serve is refused here, alone.
"""

from collections.abc import Iterator

from signalbox_contract import sampling_params
from signalbox_contract.model import ModelInfo
from signalbox_contract.pooling import PoolingModel, PoolingParams
from signalbox_contract.request import PRIORITY, Request
from signalbox_contract.wording import counted
from signalbox_scheduler.requests.beam_search import find_fault_in_search


def find_fault(request: Request, model: ModelInfo) -> str | None:
    """Says in one line why no worker of the model could serve a request; None if it can be."""
    if fault := _find_fault_in_pooling(request, model):
        return fault
    if request.prewarm and (request.pooling or request.beam_search or request.num_sequences > 1):
        return "prewarm draws nothing, and so goes with no pooling, beam search or num_sequences"
    num_prompt_tokens = len(request.prompt_token_ids)
    if request.pooling is not None and num_prompt_tokens > (window := model.max_model_len):
        return (
            f"the prompt has {counted(num_prompt_tokens, 'token')}; the model's window has {window}"
        )
    if request.pooling is None and num_prompt_tokens >= model.max_model_len:
        return (
            f"the prompt has {counted(num_prompt_tokens, 'token')}; the model's window of"
            f" {model.max_model_len} leaves none to generate"
        )
    if max(request.prompt_token_ids) >= model.vocab_size:
        return f"token ids must be below the vocabulary's size, {model.vocab_size}"
    if max(request.prediction, default=0) >= model.vocab_size:
        return f"token ids of prediction must be below the vocabulary's size, {model.vocab_size}"
    if not PRIORITY.holds(request.priority):
        return f"priority is {request.priority}, must be in {PRIORITY}"
    if fault_in_params := sampling_params.find_fault(request.params, vocab_size=model.vocab_size):
        return fault_in_params.message
    return find_fault_in_search(request, vocab_size=model.vocab_size) or _find_fault_in_delivered(
        request, model
    )


def _find_fault_in_delivered(request: Request, model: ModelInfo) -> str | None:
    """Checks the output of earlier attempts, which must leave something to generate."""
    delivered = request.delivered
    if not delivered:
        return None
    if len(delivered) != request.num_sequences or not request.attempt:
        return (
            f"delivered has {len(delivered)} sequences, must have {request.num_sequences}, in a"
            " later attempt"
        )
    lengths = [len(sequence.token_ids) for sequence in delivered]
    most = min(request.max_tokens, model.max_model_len - len(request.prompt_token_ids))
    if not 0 < min(lengths) <= max(lengths) <= most:
        return f"delivered has {max(lengths)} and {min(lengths)} tokens, must be in [1, {most}]"
    lowest = min(min(sequence.token_ids) for sequence in delivered)
    highest = max(max(sequence.token_ids) for sequence in delivered)
    if lowest < 0 or highest >= model.vocab_size:
        value = lowest if lowest < 0 else highest
        return f"delivered has token {value}, must be below {model.vocab_size}"
    going_on = [length for length, one in zip(lengths, delivered, strict=True) if not one[1]]
    if not going_on or max(going_on) == most:
        return "delivered leaves nothing to generate"
    return None


def _find_fault_in_pooling(request: Request, model: ModelInfo) -> str | None:
    """Returns in one line why a request cannot be pooled, or must be; None if all is well."""
    if (request.pooling is None) is not (model.pooling is None):
        if request.pooling is None:
            return "pooling is unset, must be set: the model makes vectors and generates nothing"
        return "pooling is set, must be unset: the model generates and makes no vectors"
    if request.pooling is None or model.pooling is None:
        return None
    return next(_pooling_faults(request, request.pooling, model.pooling), None)


def _pooling_faults(request: Request, params: PoolingParams, model: PoolingModel) -> Iterator[str]:
    num_prompt_tokens = len(request.prompt_token_ids)
    for name, value in (
        ("num_sequences", request.num_sequences),
        ("max_tokens", request.max_tokens),
    ):
        if value != 1:
            yield f"{name} is {value}, must be 1 with pooling"
    for name, is_set in (
        ("beam_search", request.beam_search is not None),
        ("prediction", bool(request.prediction)),
        ("delivered", bool(request.delivered)),
        ("structured_output", request.params.structured_output is not None),
        ("num_logprobs", request.params.num_logprobs is not None),
        ("num_prompt_logprobs", request.params.num_prompt_logprobs is not None),
    ):
        if is_set:
            yield f"{name} is set, must be unset with pooling"
    if params.is_per_token and num_prompt_tokens > (most := model.max_vector_tokens):
        yield f"pooling.is_per_token is set, must be unset beyond {most} prompt tokens"
    if model.task == "token_embed" and not params.is_per_token:
        yield "pooling.is_per_token is unset, must be set: the model makes vectors of tokens"
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
