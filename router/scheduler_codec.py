"""Between the router's plain data and the messages of scheduler.v1."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from protos.scheduler.v1 import scheduler_pb2 as pb
from protos.worker.v1 import worker_pb2
from router.outputs import End, Finish, FinishReason, Timings, TokenLogprobs, Usage
from router.request import GenerationRequest
from router.sampling import BeamSearch
from rpc import sampling_codec
from rpc.columns import int32_list, int64_list, pack_int32
from rpc.errors import ContextOverflow, RpcError, from_code

_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_STOP_TOKEN: FinishReason.STOP_TOKEN,
    pb.FINISH_REASON_STOP_STRING: FinishReason.STOP_STRING,
    pb.FINISH_REASON_ERROR: FinishReason.ERROR,
}
_FINISH_REASONS = {reason: number for number, reason in _REASONS.items()}


def add_request(request: GenerationRequest) -> pb.AddRequest:
    params = request.params
    traceparent, tracestate = request.trace_context
    message = pb.AddRequest(
        handle=request.handle,
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=sampling_codec.encode(params.sampling),
        max_tokens=params.max_tokens,
        num_sequences=params.num_sequences,
        beam_search=_beam_search(params.beam_search),
        timeout_ns=request.remaining_ns,
        tenant=request.tenant,
        priority=request.priority,
        cache_salt=request.cache_salt,
        trace_context=worker_pb2.TraceContext(traceparent=traceparent, tracestate=tracestate),
        nonce=request.nonce,
        # Once tokens have come it was admitted as it is.
        max_tokens_is_default=params.max_tokens_is_default and not request.num_generated_tokens,
    )
    if request.attempt:
        _write_resumed(message, request)
    return message


def _write_resumed(message: pb.AddRequest, request: GenerationRequest) -> None:
    """Says what the request has had, so that it goes on behind it."""
    message.attempt = request.attempt
    message.age_ns = request.age_ns
    message.num_delivered_prompt_logprobs = request.num_prompt_logprobs
    for token_ids, end in request.delivered:
        message.delivered.add(
            token_ids=pack_int32(token_ids),
            finish_reason=_FINISH_REASONS[end.reason] if end else pb.FINISH_REASON_UNSPECIFIED,
        )


def _beam_search(search: BeamSearch | None) -> pb.BeamSearch | None:
    if search is None:
        return None
    return pb.BeamSearch(
        width=search.width,
        length_penalty=search.length_penalty,
        early_stopping=search.early_stopping,
    )


@dataclass(slots=True)
class TokenRun:
    """New tokens of one sequence."""

    handle: int
    index: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs]
    """Of each token, or none."""


def token_runs(outputs: pb.StepOutputs) -> Iterable[TokenRun]:
    """Returns a step's new tokens. Raises ValueError if its columns do not fit together."""
    handles, indices = int64_list(outputs.handles), int32_list(outputs.indices)
    lengths, token_ids = int32_list(outputs.num_tokens), int32_list(outputs.token_ids)
    if outputs.logprobs or lengths.count(1) != len(lengths):
        if sum(lengths) != len(token_ids):
            raise ValueError(f"{sum(lengths)} tokens are announced, and {len(token_ids)} there")
        logprobs = {entry.row: token_logprobs(entry) for entry in outputs.logprobs}
        return _runs(zip(handles, indices, lengths, strict=True), token_ids, logprobs)
    columns = zip(handles, indices, lengths, token_ids, strict=True)
    return [TokenRun(handle, index, [token_id], []) for handle, index, _, token_id in columns]


def _runs(
    rows: Iterable[tuple[int, int, int]], token_ids: list[int], logprobs: dict[int, TokenLogprobs]
) -> Iterator[TokenRun]:
    start = 0
    for handle, index, length in rows:
        end = start + length
        of_run = [logprobs[row] for row in range(start, end) if row in logprobs]
        yield TokenRun(handle, index, token_ids[start:end], of_run)
        start = end


def token_logprobs(entry: worker_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(
        entry.logprob, entry.rank, list(entry.top_token_ids), list(entry.top_logprobs)
    )


def finish(sequence: pb.SequenceFinished) -> Finish:
    return Finish(
        _REASONS.get(sequence.reason, FinishReason.ERROR),
        stop_token_id=sequence.stop_token_id if sequence.HasField("stop_token_id") else None,
        error_message=sequence.error_message,
        score=sequence.score if sequence.HasField("score") else None,
    )


def ended(finished: pb.RequestFinished) -> End:
    usage, timings = finished.usage, finished.timings
    return End(
        Usage(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens),
        Timings(timings.queued_ns, timings.prefill_ns, timings.decode_ns, timings.preempted_ns),
    )


def error(finished: pb.RequestFinished, request: GenerationRequest) -> RpcError:
    """Returns why a request has failed, as its client is told."""
    if finished.HasField("exceeded_window"):
        window = finished.exceeded_window
        what = f"a prompt of {len(request.prompt_token_ids)} tokens"
        return ContextOverflow(request.prompt_field, what, f"at most {window - 1}", window=window)
    has_retry = finished.HasField("retry_after_ns")
    return from_code(
        finished.code, finished.message, finished.retry_after_ns / 1e9 if has_retry else None
    )
