"""Computes the request of a receipt again, and finds the first position that differs."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import NamedTuple

from signalbox.llm.in_process.engine_core import EngineCore
from signalbox.llm.in_process.in_process_request import InProcessRequest
from signalbox.llm.requests.prompts import Prompt
from signalbox_contract.request import DeliveredSequence
from signalbox_contract.sampling_params import SamplingParams
from signalbox_router.params.generation_params import GenerationParams
from signalbox_router.receipts.receipt_codec import Receipt

_WITHOUT_EFFECT = ("seed", "stop_token_ids", "top_p", "top_k", "min_p", "typical_p")
"""Parameters that do not change greedy draws."""


class OtherEngine(ValueError):
    """Raised where this engine cannot verify a receipt; has the reason and the remedy."""


class Difference(NamedTuple):
    """The first position at which a sequence of a receipt differs from the computed one."""

    branch: int
    position: int
    """Index in the sequence's output."""
    in_receipt: int | str
    """Token at the position, or the reason why the output has none there."""
    computed: int | str


def recompute(core: EngineCore, receipt: Receipt) -> Difference | None:
    """Computes a receipt's request again, up to the first difference; None if there is none.

    Raises OtherEngine, ValueError for a request that the engine refuses, and RuntimeError for one
    that fails.
    """
    _check_model(core, receipt)
    _check_arithmetic(core, receipt)
    params, expected = receipt.params, receipt.outputs[0].token_ids
    if max(expected, default=0) < core.model.vocab_size:  # as drafts, several tokens in a step
        params = replace(params, prediction=tuple(expected))
    request = core.add(receipt.request_id, _prompt(receipt), params)
    try:
        while request.ended is None:
            _step(core, request)
            found = request.delivered or [DeliveredSequence([], None)] * len(receipt.outputs)
            if difference := _first_difference(receipt.outputs, found):
                return difference
    finally:
        core.abort(request)
    return None


def compare(core: EngineCore, receipt: Receipt, *, tolerance: float) -> Difference | None:
    """Returns the first token of a greedy receipt whose logit is more than `tolerance` below the
    largest one; None if there is none. The engine may compute other bits.

    Raises what `recompute` does.
    """
    _check_model(core, receipt)
    _check_greedy(receipt.params.sampling)
    sampling = SamplingParams(num_prompt_logprobs=1)
    num_prompt = len(receipt.prompt_token_ids)
    for branch, (token_ids, _) in enumerate(receipt.outputs):
        prompt = _prompt(receipt)._replace(token_ids=[*receipt.prompt_token_ids, *token_ids])
        params = GenerationParams(sampling=sampling, max_tokens=1)
        request = core.add(receipt.request_id, prompt, params)
        try:
            while request.ended is None:
                _step(core, request)
            logprobs = request.output().prompt_logprobs or []
        finally:
            core.abort(request)
        for position, token_id in enumerate(token_ids):
            found = {one: it.logprob for one, it in (logprobs[num_prompt + position] or {}).items()}
            best = max(found, key=found.__getitem__)
            if found[best] - found[token_id] > tolerance:
                return Difference(branch, position, token_id, best)
    return None


def _prompt(receipt: Receipt) -> Prompt:
    return Prompt(
        None,
        list(receipt.prompt_token_ids),
        adapter=receipt.adapter,
        kept_token_ids=frozenset(receipt.kept_token_ids),
    )


def _check_model(core: EngineCore, receipt: Receipt) -> None:
    model = core.model
    if receipt.fingerprint != model.fingerprint:
        raise OtherEngine(
            f"the receipt is of another model: {receipt.model}, fingerprint"
            f" {receipt.fingerprint[:12]}; that of {model.name} is {model.fingerprint[:12]}"
        )
    if not model.has(receipt.adapter):
        raise OtherEngine(
            f"the receipt is of the adapter with SHA-256 {receipt.adapter[:12]}; load it by --lora"
            " NAME=PATH"
        )


def _check_arithmetic(core: EngineCore, receipt: Receipt) -> None:
    if not core.arithmetic:
        raise OtherEngine("the bits of this engine depend on the batch; compute natively, on a CPU")
    if receipt.arithmetic != core.arithmetic:
        raise OtherEngine(
            f"this engine computes other bits: its arithmetic is {core.arithmetic[:12]}, that of"
            f" the receipt {receipt.arithmetic[:12]}; use the instruction set, the types and the"
            " number of ranks of the server, or --tolerance for a greedy request"
        )


def _check_greedy(params: SamplingParams) -> None:
    """Raises OtherEngine unless each token is the likeliest by the model's own logits."""
    neutral = SamplingParams()
    names = [one.name for one in fields(params) if one.name not in _WITHOUT_EFFECT]
    if changed := [name for name in names if getattr(params, name) != getattr(neutral, name)]:
        raise OtherEngine(
            "a tolerance is for greedy draws from the model's own logits; the receipt sets"
            f" {', '.join(changed)}"
        )


def _step(core: EngineCore, request: InProcessRequest) -> None:
    """Waits for a step. Raises RuntimeError if the request has failed."""
    with core.interrupts:
        core.send_steps()
        if core.oldest is not None:
            core.interrupts.wait(core.oldest)
        core.complete_step()
    if request.ended is not None and (failure := request.ended.failure) is not None:
        raise RuntimeError(failure.message)


def _first_difference(
    expected: Sequence[DeliveredSequence], found: Sequence[DeliveredSequence]
) -> Difference | None:
    """Compares the output so far; of a sequence that has ended, also its length and reason."""
    for branch, (mine, theirs) in enumerate(zip(expected, found, strict=True)):
        tokens, others = mine.token_ids, theirs.token_ids
        if tokens[: len(others)] != others:
            pairs = enumerate(zip(tokens, others, strict=False))
            at = next((i for i, (a, b) in pairs if a != b), len(tokens))
        elif theirs.finish_reason is None or mine == theirs:
            continue
        else:
            at = len(others)
        return Difference(branch, at, _at(mine, at), _at(theirs, at))
    return None


def _at(sequence: DeliveredSequence, position: int) -> int | str:
    """Returns the token at a position, or the reason for which the sequence has none there."""
    if position < len(sequence.token_ids):
        return sequence.token_ids[position]
    reason = sequence.finish_reason
    return "nothing" if reason is None else f"the end ({reason.name.lower()})"
