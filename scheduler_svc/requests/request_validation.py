"""Checks what a router asks for, before it can reach a worker.

A worker refuses a whole step for one bad value in it, which would end the lease and start every
request on that worker again; so what no worker could serve is refused here, alone.
"""

import math

from contract.model import ModelInfo
from contract.request import Request
from contract.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from contract.wording import counted
from scheduler_svc.requests.beam_search import find_fault_in_search
from scheduler_svc.requests.pooling_validation import find_fault_in_pooling

MAX_PRIORITY = 1000
"""Bound of a priority, above and below 0; it bounds how long a request may be kept waiting."""
MAX_PENALTY = 2
MAX_REPETITION_PENALTY = 10
MAX_BIAS = 100
MAX_BIASES = 1024
MAX_BAD_TOKENS = 16_384
"""All as in the worker's contract."""


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
    if abs(request.priority) > MAX_PRIORITY:
        return f"priority is {request.priority}, must be in [-{MAX_PRIORITY}, {MAX_PRIORITY}]"
    return (
        _find_fault_in_params(request.params, model)
        or find_fault_in_search(request, vocab_size=model.vocab_size)
        or _find_fault_in_delivered(request, model)
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


def _find_fault_in_params(params: SamplingParams, model: ModelInfo) -> str | None:
    for name, value, is_allowed, allowed in (
        ("temperature", params.temperature, 0 <= params.temperature < math.inf, "finite, >= 0"),
        ("top_p", params.top_p, 0 < params.top_p <= 1, "in (0, 1]"),
        ("min_p", params.min_p, 0 <= params.min_p <= 1, "in [0, 1]"),
        ("typical_p", params.typical_p, 0 < params.typical_p <= 1, "in (0, 1]"),
        (
            "repetition_penalty",
            params.repetition_penalty,
            0 < params.repetition_penalty <= MAX_REPETITION_PENALTY,
            f"in (0, {MAX_REPETITION_PENALTY}]",
        ),
    ):
        if not is_allowed:
            return f"sampling_params.{name} is {value}, must be {allowed}"
    for name in ("presence_penalty", "frequency_penalty"):
        if not abs(value := getattr(params, name)) <= MAX_PENALTY:
            return f"sampling_params.{name} is {value}, must be in [-{MAX_PENALTY}, {MAX_PENALTY}]"
    for name in ("num_logprobs", "num_prompt_logprobs"):
        if (getattr(params, name) or 0) > model.vocab_size:
            value = getattr(params, name)
            return f"sampling_params.{name} is {value}, must be at most {model.vocab_size}"
    if params.logprob_token_ids and params.num_logprobs != 0:
        return f"sampling_params.num_logprobs is {params.num_logprobs}, must be 0 with token ids"
    return _find_fault_in_tokens(params, model)


def _find_fault_in_tokens(params: SamplingParams, model: ModelInfo) -> str | None:
    biases = [bias for _, bias in params.logit_bias]
    if not all(abs(bias) <= MAX_BIAS for bias in biases):
        return f"sampling_params.logit_biases must be in [-{MAX_BIAS}, {MAX_BIAS}]"
    if not all(params.bad_words):
        return "sampling_params.bad_words has a run of no tokens"
    num_bad_tokens = sum(map(len, params.bad_words))
    if num_bad_tokens > MAX_BAD_TOKENS or len(biases) > MAX_BIASES:
        return (
            f"sampling_params has {num_bad_tokens} tokens of bad_words and {len(biases)}"
            f" logit_biases, must be at most {MAX_BAD_TOKENS} and {MAX_BIASES}"
        )
    if (count := len(params.logprob_token_ids)) > MAX_LOGPROB_TOKEN_IDS:
        most = MAX_LOGPROB_TOKEN_IDS
        return f"sampling_params.logprob_token_ids has {count} tokens, must be at most {most}"
    for name, token_ids in (
        ("stop_token_ids", params.stop_token_ids),
        ("logit_bias_token_ids", [token_id for token_id, _ in params.logit_bias]),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logprob_token_ids", params.logprob_token_ids),
        ("bad_words", [token_id for run in params.bad_words for token_id in run]),
    ):
        low, high = min(token_ids, default=0), max(token_ids, default=0)
        if low < 0 or high >= model.vocab_size:
            value = low if low < 0 else high
            return f"sampling_params.{name} is {value}, must be below {model.vocab_size}"
    if len({token_id for token_id, _ in params.logit_bias}) < len(biases):
        return "sampling_params.logit_bias_token_ids has a token twice"
    return None
