"""Between the scheduler's dataclasses and the messages of scheduler.v1 on a router's stream."""

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.worker.v1 import worker_pb2 as worker_pb
from rpc import sampling_codec
from rpc.columns import int32_list, pack_int32, pack_int64
from rpc.errors import InvalidArgument
from scheduler_svc.beam import BeamSearchParams
from scheduler_svc.errors import RequestFailure
from scheduler_svc.plan import TokenLogprobs
from scheduler_svc.router_messages import EndedRequest, FinishedSequence, RouterMessage
from scheduler_svc.sequence import DeliveredSequence, FinishReason, SequenceGroup
from scheduler_svc.timeline import GroupTimes

_FINISH_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
}
_REASONS = {number: reason for reason, number in _FINISH_REASONS.items()}

MAX_HANDLE = (1 << 63) - 1
"""Handles go back in a column of int64."""


# From routers


def group(message: pb.AddRequest, *, now: float) -> SequenceGroup:
    """Decodes a request. Raises InvalidArgument for what no router of ours sends."""
    if message.handle > MAX_HANDLE:
        raise InvalidArgument("handle", message.handle, f"at most {MAX_HANDLE}")
    if not message.prompt_token_ids:
        raise InvalidArgument("prompt_token_ids", [], "at least one token")
    if not message.max_tokens:
        raise InvalidArgument("max_tokens", 0, "at least 1")
    if not message.num_sequences:
        raise InvalidArgument("num_sequences", 0, "at least 1")
    timeout_ns = message.timeout_ns if message.HasField("timeout_ns") else None
    return SequenceGroup(
        request_id=message.request_id,
        prompt_token_ids=list(message.prompt_token_ids),
        params=sampling_codec.decode(message.sampling_params),
        max_tokens=message.max_tokens,
        max_tokens_is_default=message.max_tokens_is_default,
        num_sequences=message.num_sequences,
        beam_search=_beam_search(message.beam_search) if message.HasField("beam_search") else None,
        deadline=None if timeout_ns is None else now + timeout_ns / 1e9,
        tenant=message.tenant,
        priority=message.priority,
        cache_salt=message.cache_salt,
        num_known_prompt_logprobs=message.num_delivered_prompt_logprobs,
        attempt=message.attempt,
        nonce=message.nonce,
        delivered=[_delivered(sequence) for sequence in message.delivered],
        times=GroupTimes(arrival=now - message.age_ns / 1e9),
        traceparent=message.trace_context.traceparent,
        tracestate=message.trace_context.tracestate,
    )


def _delivered(message: pb.DeliveredSequence) -> DeliveredSequence:
    reason = _REASONS.get(message.finish_reason)
    if reason is None and message.finish_reason:
        value = int(message.finish_reason)
        raise InvalidArgument("delivered.finish_reason", value, "a FinishReason")
    return DeliveredSequence(int32_list(message.token_ids), reason)


def _beam_search(message: pb.BeamSearch) -> BeamSearchParams:
    return BeamSearchParams(
        width=message.width,
        length_penalty=message.length_penalty,
        early_stopping=message.early_stopping,
    )


# To routers


def connect_response(message: RouterMessage) -> pb.ConnectResponse:
    outputs = pb.StepOutputs(
        handles=pack_int64(message.handles),
        indices=pack_int32(message.indices),
        num_tokens=pack_int32([1] * len(message.token_ids)),
        token_ids=pack_int32(message.token_ids),
    )
    if message.logprobs:
        outputs.logprobs.extend([_logprobs(row, values) for row, values in message.logprobs])
    if message.prompt_logprobs:
        outputs.prompt_logprobs.extend([_prompt_logprobs(*run) for run in message.prompt_logprobs])
    if message.finished:
        outputs.finished_sequences.extend([_sequence_finished(one) for one in message.finished])
    if message.ended:
        outputs.finished_requests.extend([_request_finished(one) for one in message.ended])
    if message.admitted:
        outputs.admitted.extend(
            [pb.RequestAdmitted(handle=one, max_tokens=most) for one, most in message.admitted]
        )
    return pb.ConnectResponse(step_outputs=outputs)


def _prompt_logprobs(
    handle: int, first_position: int, logprobs: list[TokenLogprobs]
) -> pb.PromptLogprobs:
    return pb.PromptLogprobs(
        handle=handle,
        first_position=first_position,
        logprobs=[_logprobs(row, values) for row, values in enumerate(logprobs)],
    )


def _logprobs(row: int, values: TokenLogprobs) -> worker_pb.TokenLogprobs:
    return worker_pb.TokenLogprobs(
        row=row,
        logprob=values.logprob,
        rank=values.rank,
        top_token_ids=values.top_token_ids,
        top_logprobs=values.top_logprobs,
    )


def _sequence_finished(finished: FinishedSequence) -> pb.SequenceFinished:
    return pb.SequenceFinished(
        handle=finished.handle,
        index=finished.index,
        reason=_FINISH_REASONS[finished.reason],
        stop_token_id=finished.stop_token_id,
        error_message=finished.error_message,
        score=finished.score,
    )


def _request_finished(ended: EndedRequest) -> pb.RequestFinished:
    message = pb.RequestFinished(
        handle=ended.handle,
        usage=pb.Usage(
            prompt_tokens=ended.num_prompt_tokens,
            completion_tokens=ended.num_completion_tokens,
            cached_tokens=ended.num_cached_tokens,
        ),
        timings=_timings(ended.times, ended.now),
    )
    if ended.failure is not None:
        _fill_failure(message, ended.failure)
    return message


def _fill_failure(message: pb.RequestFinished, failure: RequestFailure) -> None:
    message.code = failure.code.value
    message.message = failure.message
    if failure.exceeded_window is not None:
        message.exceeded_window = failure.exceeded_window
    if failure.retry_after_s is not None:
        message.retry_after_ns = int(failure.retry_after_s * 1e9)


def _timings(times: GroupTimes, now: float) -> pb.Timings:
    scheduled = now if times.first_scheduled is None else times.first_scheduled
    first_token = now if times.first_token is None else times.first_token
    last_token = first_token if times.last_token is None else times.last_token
    return pb.Timings(
        queued_ns=_nanoseconds(scheduled - times.arrival),
        prefill_ns=_nanoseconds(first_token - scheduled),
        decode_ns=_nanoseconds(last_token - first_token),
        preempted_ns=_nanoseconds(times.total_preempted(now)),
    )


def _nanoseconds(seconds: float) -> int:
    return max(0, int(seconds * 1e9))
