"""Checks what a router asks for, before it can reach a worker.

A worker refuses a whole step for one bad value in it, which would end the lease and start every
request on that worker again; so what no worker could serve is refused here, alone.
"""

from signalbox_contract import sampling_params
from signalbox_contract.model import ModelInfo
from signalbox_contract.request import PRIORITY, Request
from signalbox_contract.wording import counted
from signalbox_scheduler.requests.beam_search import find_fault_in_search
from signalbox_scheduler.requests.pooling_validation import find_fault_in_pooling


def find_fault(request: Request, model: ModelInfo) -> str | None:
    """Says in one line why no worker of the model could serve a request; None if it can be."""
    if fault := find_fault_in_pooling(request, model):
        return fault
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
