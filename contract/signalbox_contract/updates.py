"""Updates of a router's requests from a scheduler, one message per step, with its codec."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from signalbox_contract import logprobs
from signalbox_contract.columns import (
    check_length,
    check_lowest,
    int32_list,
    int64_list,
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_float32,
)
from signalbox_contract.errors import Code, cut
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.pooling import Vector
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb


class FinishReason(Enum):
    """Reason why a sequence ended; see scheduler.proto."""

    STOP = pb.FINISH_REASON_STOP
    LENGTH = pb.FINISH_REASON_LENGTH
    STOP_TOKEN = pb.FINISH_REASON_STOP_TOKEN
    STOP_STRING = pb.FINISH_REASON_STOP_STRING
    ERROR = pb.FINISH_REASON_ERROR


_REASONS = {reason.value: reason for reason in FinishReason}
_CODES = frozenset(Code)


class Usage(NamedTuple):
    """Tokens that a request took; completion tokens are those of all sequences."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Tokens of the prompt that were not computed because their blocks were cached."""


class Timings(NamedTuple):
    """Parts of a request's time, in nanoseconds; see scheduler.proto."""

    queued_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """Error that ends a request without a result."""

    code: Code
    message: str
    retry_after_s: float | None = None
    """None if a retry cannot succeed, or if the scheduler does not know when it may."""
    exceeded_window: int | None = None
    """The effective window, if the prompt is too long for it."""

    def __post_init__(self) -> None:
        """Cuts a message that is too long to be kept."""
        object.__setattr__(self, "message", cut(self.message))


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSequence:
    """A sequence that ended; its last tokens are in the same message or came before."""

    handle: int
    index: int
    reason: FinishReason
    stop_token_id: int | None = None
    error_message: str = ""
    score: float | None = None
    """Score of a hypothesis of a beam search."""


class SpeculationUse(NamedTuple):
    """Counts of drafts of all sequences of a request; see scheduler.proto."""

    num_runs: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_predicted: int = 0
    num_predicted_accepted: int = 0


NO_SPECULATION = SpeculationUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRequest:
    """A request that ended; nothing follows for its handle."""

    handle: int
    failure: RequestFailure | None
    usage: Usage
    timings: Timings
    speculation: SpeculationUse = NO_SPECULATION
    arithmetic: str = ""
    """`WorkerCapacity.arithmetic` of all workers that have drawn tokens; empty if they differ."""


class AdmittedRequest(NamedTuple):
    """A request whose default of max_tokens the scheduler has lowered."""

    handle: int
    max_tokens: int


class PooledOutput(NamedTuple):
    """The vector of a request that pools."""

    handle: int
    vector: Vector


class PromptRun(NamedTuple):
    """Log probabilities of a run of one request's prompt."""

    handle: int
    first_position: int
    logprobs: list[TokenLogprobs]


TokenRun = tuple[int, int, list[int], list[TokenLogprobs]]
"""New tokens of one sequence: handle, index, token ids, and log probabilities if requested.

A tuple, because a router makes one for each token: an object costs twice as much.
"""


@dataclass(slots=True)
class RequestUpdates:
    """Effects of one step on the requests of one router.

    The new tokens are columns. `handles` and `indices` have one element for each run of tokens.
    """

    handles: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    """Index of the sequence within its request."""
    num_tokens: list[int] = field(default_factory=list)
    """Length of each run; empty if each run has one token."""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    """(row in token_ids, values)."""
    prompt_logprobs: list[PromptRun] = field(default_factory=list)
    finished_sequences: list[FinishedSequence] = field(default_factory=list)
    finished_requests: list[FinishedRequest] = field(default_factory=list)
    admitted: list[AdmittedRequest] = field(default_factory=list)
    pooled: list[PooledOutput] = field(default_factory=list)

    def runs(self) -> Iterable[TokenRun]:
        """Returns the new tokens by sequence."""
        if self.num_tokens or self.logprobs:
            return self._long_runs(self.num_tokens or [1] * len(self.handles))
        columns = zip(self.handles, self.indices, self.token_ids, strict=True)
        return [(handle, index, [token_id], []) for handle, index, token_id in columns]

    def _long_runs(self, lengths: list[int]) -> Iterator[TokenRun]:
        by_row = dict(self.logprobs)
        start = 0
        for handle, index, length in zip(self.handles, self.indices, lengths, strict=True):
            end = start + length
            of_run = [by_row[row] for row in range(start, end) if row in by_row]
            yield handle, index, self.token_ids[start:end], of_run
            start = end


def encode(updates: RequestUpdates) -> pb.RequestUpdates:
    message = pb.RequestUpdates(
        handles=pack_int64(updates.handles),
        indices=pack_int32(updates.indices),
        num_tokens=pack_int32(updates.num_tokens),
        token_ids=pack_int32(updates.token_ids),
    )
    if updates.logprobs:
        message.logprobs.extend([logprobs.encode(one, row=row) for row, one in updates.logprobs])
    if updates.prompt_logprobs:
        message.prompt_logprobs.extend([_encode_prompt(run) for run in updates.prompt_logprobs])
    if updates.finished_sequences:
        message.finished_sequences.extend(map(_encode_sequence, updates.finished_sequences))
    if updates.finished_requests:
        message.finished_requests.extend(map(_encode_request, updates.finished_requests))
    if updates.admitted:
        message.admitted.extend([pb.AdmittedRequest(**one._asdict()) for one in updates.admitted])
    for handle, vector in updates.pooled:
        message.pooled.add(handle=handle, values=pack_float32(vector))
    return message


def decode(message: pb.RequestUpdates) -> RequestUpdates:
    """Raises InvalidArgument if the columns do not fit together, or hold what no run can have."""
    handles = int64_list(message.handles, "handles")
    indices = int32_list(message.indices, "indices")
    num_tokens = int32_list(message.num_tokens, "num_tokens")
    token_ids = int32_list(message.token_ids, "token_ids")
    check_length("indices", len(indices), len(handles))
    check_lowest("indices", indices, 0)
    if num_tokens:
        check_length("num_tokens", len(num_tokens), len(handles))
        check_lowest("num_tokens", num_tokens, 0)
    check_length("token_ids", len(token_ids), sum(num_tokens) if num_tokens else len(handles))
    check_lowest("token_ids", token_ids, 0)
    updates = RequestUpdates(handles, indices, num_tokens, token_ids)
    if entries := message.logprobs:
        updates.logprobs = [(entry.row, logprobs.decode(entry)) for entry in entries]
    if runs := message.prompt_logprobs:
        updates.prompt_logprobs = [_decode_prompt(run) for run in runs]
    if sequences := message.finished_sequences:
        updates.finished_sequences = [_decode_sequence(one) for one in sequences]
    if requests := message.finished_requests:
        updates.finished_requests = [_decode_request(one) for one in requests]
    if admitted := message.admitted:
        updates.admitted = [AdmittedRequest(one.handle, one.max_tokens) for one in admitted]
    updates.pooled = [
        PooledOutput(one.handle, unpack_float32(one.values, "pooled.values"))
        for one in message.pooled
    ]
    return updates


def _encode_prompt(run: PromptRun) -> pb.PromptLogprobs:
    entries = [logprobs.encode(one, row=row) for row, one in enumerate(run.logprobs)]
    return pb.PromptLogprobs(handle=run.handle, first_position=run.first_position, logprobs=entries)


def _decode_prompt(message: pb.PromptLogprobs) -> PromptRun:
    entries = [logprobs.decode(entry) for entry in message.logprobs]
    return PromptRun(message.handle, message.first_position, entries)


def _encode_sequence(finished: FinishedSequence) -> pb.FinishedSequence:
    return pb.FinishedSequence(
        handle=finished.handle,
        index=finished.index,
        reason=finished.reason.value,
        stop_token_id=finished.stop_token_id,
        error_message=finished.error_message,
        score=finished.score,
    )


def _decode_sequence(message: pb.FinishedSequence) -> FinishedSequence:
    return FinishedSequence(
        handle=message.handle,
        index=message.index,
        reason=_REASONS.get(message.reason, FinishReason.ERROR),
        stop_token_id=message.stop_token_id if message.HasField("stop_token_id") else None,
        error_message=cut(message.error_message),
        score=message.score if message.HasField("score") else None,
    )


def _encode_request(finished: FinishedRequest) -> pb.FinishedRequest:
    message = pb.FinishedRequest(
        handle=finished.handle,
        usage=pb.Usage(**finished.usage._asdict()),
        timings=pb.Timings(**finished.timings._asdict()),
        arithmetic=finished.arithmetic,
    )
    if finished.speculation.num_runs:
        message.speculation.CopyFrom(pb.SpeculationUse(**finished.speculation._asdict()))
    if (failure := finished.failure) is not None:
        message.code = failure.code
        message.message = failure.message
        if failure.exceeded_window is not None:
            message.exceeded_window = failure.exceeded_window
        if failure.retry_after_s is not None:
            message.retry_after_ns = int(failure.retry_after_s * 1e9)
    return message


def _decode_request(message: pb.FinishedRequest) -> FinishedRequest:
    usage, timings = message.usage, message.timings
    return FinishedRequest(
        handle=message.handle,
        failure=_decode_failure(message) if message.code else None,
        usage=Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        timings=Timings(
            timings.queued_ns, timings.prefill_ns, timings.decode_ns, timings.preempted_ns
        ),
        speculation=_decode_speculation(message.speculation),
        arithmetic=message.arithmetic,
    )


def _decode_speculation(message: pb.SpeculationUse) -> SpeculationUse:
    return SpeculationUse(*(getattr(message, name) for name in SpeculationUse._fields))


def _decode_failure(message: pb.FinishedRequest) -> RequestFailure:
    has_retry, has_window = message.HasField("retry_after_ns"), message.HasField("exceeded_window")
    return RequestFailure(
        Code(message.code) if message.code in _CODES else Code.UNKNOWN,
        message.message,
        message.retry_after_ns / 1e9 if has_retry else None,
        message.exceeded_window if has_window else None,
    )
