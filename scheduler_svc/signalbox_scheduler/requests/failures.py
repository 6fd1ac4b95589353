"""Failures of requests: codes and messages of refusals, and of requests that end by an error."""

from signalbox_contract.errors import Code
from signalbox_contract.updates import RequestFailure
from signalbox_contract.wording import counted
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.suspicion import Suspicion

RETRY_AFTER_S = 1.0


def no_worker_serves() -> RequestFailure:
    return RequestFailure(Code.UNAVAILABLE, "no worker serves", RETRY_AFTER_S)


def no_such_adapter(sha256: str) -> RequestFailure:
    return RequestFailure(
        Code.NOT_FOUND, f"the workers have no adapter with the SHA-256 {sha256[:64]!r}"
    )


def drains() -> RequestFailure:
    return RequestFailure(Code.UNAVAILABLE, "the scheduler is draining", RETRY_AFTER_S)


def no_worker_came(wait_s: float) -> RequestFailure:
    waited = f", and none joined within {wait_s:g} s" if wait_s else ""
    return RequestFailure(Code.UNAVAILABLE, f"no worker serves{waited}", RETRY_AFTER_S)


def model_changed() -> RequestFailure:
    return RequestFailure(
        Code.UNAVAILABLE, "the workers that have joined serve another model", RETRY_AFTER_S
    )


def policy_fails() -> RequestFailure:
    return RequestFailure(Code.INTERNAL, "the scheduling policy fails on this request")


def too_many(message: str) -> RequestFailure:
    """Returns the failure of a request that may be served once others have ended."""
    return RequestFailure(Code.RESOURCE_EXHAUSTED, message, RETRY_AFTER_S)


def exceeds_window(group: SequenceGroup, window: int) -> RequestFailure:
    return RequestFailure(
        Code.INVALID_ARGUMENT,
        f"the prompt has {counted(group.num_prompt_tokens, 'token')}; the maximum"
        f" context length is {window} tokens, as much as the largest worker's KV cache holds",
        exceeded_window=window,
    )


def no_room_left(group: SequenceGroup) -> RequestFailure:
    """Returns the failure of a request that only a lost worker had room for."""
    return RequestFailure(
        Code.UNAVAILABLE,
        "no worker that is left has room for"
        f" {counted(group.num_prompt_tokens, 'prompt token')} and {group.max_tokens} more",
        RETRY_AFTER_S,
    )


def never_fits(group: SequenceGroup) -> RequestFailure:
    fit = "fits" if group.num_branches == 1 else "fit"
    return RequestFailure(
        Code.RESOURCE_EXHAUSTED,
        f"{counted(group.num_branches, 'sequence')} of"
        f" {counted(group.num_prompt_tokens, 'prompt token')} and up to"
        f" {group.max_tokens} more {fit} no worker's KV cache; lower max_tokens or ask for fewer"
        " sequences",
    )


def breaks_workers(suspicion: Suspicion) -> RequestFailure:
    num_steps = sum(loss.is_of_step for loss in suspicion.losses)
    parts = {"worker": len(suspicion.losses) - num_steps, "step": num_steps}
    lost = " and ".join(counted(number, what) for what, number in parts.items() if number)
    verb = "failed" if num_steps else "died"
    return RequestFailure(Code.INTERNAL, f"{lost} {verb} while working on the request")


def cannot_compile(fault: str) -> RequestFailure:
    """Returns the failure of a request whose structured output its worker cannot compile."""
    message = f"its structured output cannot be compiled: {fault}"
    return RequestFailure(Code.FAILED_PRECONDITION, message)
