"""What a step's outcome means for routers: one message for each router that it concerns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler_svc.plan import StepOutcome
from scheduler_svc.router_messages import EndedRequest, FinishedSequence, RouterMessage
from scheduler_svc.sequence import Sequence, SequenceGroup


class RouterSession(Protocol):
    """Where a router's messages go. Must not block and must not call back."""

    def send(self, message: RouterMessage) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """A live request and who asked for it."""

    group: SequenceGroup
    session: RouterSession
    handle: int


def router_messages(
    outcome: StepOutcome, requests: Mapping[SequenceGroup, Request], *, now: float
) -> dict[RouterSession, RouterMessage]:
    """Returns what each router is told of an outcome, all of whose requests are live."""
    messages: dict[RouterSession, RouterMessage] = {}
    for seq, token_id, logprobs in outcome.tokens:
        request = requests[seq.group]
        message = messages.get(request.session)
        if message is None:
            message = messages[request.session] = RouterMessage()
        message.add_token(
            handle=request.handle, index=seq.branch, token_id=token_id, logprobs=logprobs
        )
    for group, first_position, prompt_logprobs in outcome.prompt_logprobs:
        request = requests[group]
        message = messages.setdefault(request.session, RouterMessage())
        message.prompt_logprobs.append((request.handle, first_position, prompt_logprobs))
    for seq in outcome.finished:
        request = requests[seq.group]
        message = messages.setdefault(request.session, RouterMessage())
        message.finished.append(_finished(seq, request.handle))
    for group in outcome.ended:
        request = requests[group]
        message = messages.setdefault(request.session, RouterMessage())
        message.ended.append(ended_request(request, now=now))
    return messages


def ended_request(request: Request, *, now: float) -> EndedRequest:
    """Returns the last thing that a router is told of a request."""
    group = request.group
    return EndedRequest(
        handle=request.handle,
        failure=group.failure,
        num_prompt_tokens=group.num_prompt_tokens,
        num_completion_tokens=group.num_completion_tokens,
        num_cached_tokens=group.num_cached_tokens,
        times=group.times,
        now=now,
    )


def _finished(seq: Sequence, handle: int) -> FinishedSequence:
    assert seq.finish_reason is not None, "only finished sequences are reported"
    return FinishedSequence(
        handle=handle,
        index=seq.branch,
        reason=seq.finish_reason,
        stop_token_id=seq.stop_token_id,
        error_message=seq.failure.message if seq.failure else "",
        score=seq.score,
    )
