"""Converts requests of inference.v1 to plain data, and updates to its responses."""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message as ProtoMessage

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.request import MAX_AGE_S
from signalbox_contract.structured_output import constraint_codec
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec
from signalbox_router.params.generation_params import SharedFields
from signalbox_router.params.token_validation import MAX_ITEMS, as_list, check_counts
from signalbox_router.prompt.chat.conversation import Conversation
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.api_request import ApiRequest, PromptText, PromptTokens
from signalbox_router.requests.output_buffer import Delivery, OutputKind
from signalbox_router.requests.request_output import (
    Delta,
    End,
    Finish,
    FinishReason,
)

Response = TypeVar("Response", pb.GenerateResponse, pb.ChatResponse)

MAX_RUN_BYTES = 1 << 20
"""Bytes of a prompt's log probabilities in one message. Clients accept 4 MiB by default, and the
event loop must not encode all entries of a long prompt at once."""

_OUTPUT_KINDS = {
    pb.OUTPUT_KIND_UNSPECIFIED: OutputKind.DELTA,
    pb.OUTPUT_KIND_DELTA: OutputKind.DELTA,
    pb.OUTPUT_KIND_CUMULATIVE: OutputKind.CUMULATIVE,
    pb.OUTPUT_KIND_FINAL_ONLY: OutputKind.FINAL_ONLY,
}
_REASONS = {
    FinishReason.STOP: pb.FINISH_REASON_STOP,
    FinishReason.LENGTH: pb.FINISH_REASON_LENGTH,
    FinishReason.STOP_STRING: pb.FINISH_REASON_STOP_STRING,
    FinishReason.STOP_TOKEN: pb.FINISH_REASON_STOP_TOKEN,
    FinishReason.ERROR: pb.FINISH_REASON_ERROR,
    FinishReason.TOOL_CALLS: pb.FINISH_REASON_TOOL_CALLS,
}


def generate_api_request(request: pb.GenerateRequest) -> ApiRequest:
    return _asked(request, _prompt(request))


def chat_api_request(request: pb.ChatRequest) -> ApiRequest:
    return conversation_api_request(request, chat_codec.conversation(request))


def conversation_api_request(request: pb.ChatRequest, conversation: Conversation) -> ApiRequest:
    """Returns the request for an answer to the conversation; the message's own is not read."""
    conversation.check()
    chat_codec.check_structured_output(request, conversation.tool_choice)
    return _asked(request, conversation)


def _asked(
    request: pb.GenerateRequest | pb.ChatRequest, prompt: PromptText | PromptTokens | Conversation
) -> ApiRequest:
    params = request.sampling_params
    check_counts({name: len(getattr(params, name)) for name in MAX_ITEMS})
    sampling = SharedFields(_set_fields(params))
    if "logit_bias" in sampling:
        sampling["logit_bias"] = tuple((one.token_id, one.bias) for one in params.logit_bias)
    if "allowed_token_ids" in sampling:
        sampling["allowed_token_ids"] = tuple(as_list(params.allowed_token_ids))
    if "beam_search" in sampling:
        sampling["beam_search"] = _set_fields(sampling["beam_search"])
    if "structured_output" in sampling:
        sampling["structured_output"] = constraint_codec.read(params)
    return ApiRequest(
        request_id=request.request_id,
        model=request.model,
        prompt=prompt,
        priority=request.priority,
        cache_salt=request.cache_salt,
        session_name=request.session,
        keep_ns=_keep_ns(request),
        sampling=sampling,
        truncate_prompt_tokens=(
            request.truncate_prompt_tokens if request.HasField("truncate_prompt_tokens") else None
        ),
        delivery=_delivery(request),
        wants_receipt=request.receipt,
    )


def _keep_ns(request: pb.GenerateRequest | pb.ChatRequest) -> int:
    if not request.HasField("prefix_ttl"):
        return 0
    ttl = request.prefix_ttl
    if ttl.seconds < 0 or ttl.nanos < 0:
        raise InvalidArgument("prefix_ttl", f"{ttl.seconds} s and {ttl.nanos} ns", "at least 0")
    # Longer times than a Duration may have are a month, too.
    return min(ttl.seconds * 10**9 + ttl.nanos, MAX_AGE_S * 10**9)


def _delivery(request: pb.GenerateRequest | pb.ChatRequest) -> Delivery:
    kind = _OUTPUT_KINDS.get(request.output_kind)
    if kind is None:
        allowed = "OUTPUT_KIND_DELTA, OUTPUT_KIND_CUMULATIVE or OUTPUT_KIND_FINAL_ONLY"
        raise InvalidArgument("output_kind", int(request.output_kind), allowed)
    return Delivery(
        kind=kind,
        stream_interval=request.stream_interval if request.HasField("stream_interval") else 1,
        echo=isinstance(request, pb.GenerateRequest) and request.echo,
    )


def _set_fields(message: ProtoMessage) -> dict[str, Any]:
    return {field.name: value for field, value in message.ListFields()}


def value_or(message: ProtoMessage, name: str, default: bool) -> bool:
    """Returns the value of an optional field."""
    return bool(getattr(message, name)) if message.HasField(name) else default


def _prompt(request: pb.GenerateRequest) -> PromptText | PromptTokens:
    match request.WhichOneof("prompt"):
        case "text":
            add_special_tokens = value_or(request, "add_special_tokens", True)
            return PromptText(request.text, add_special_tokens)
        case "token_ids":
            return PromptTokens(as_list(request.token_ids.ids))
    raise InvalidArgument("prompt", None, "exactly one of text and token_ids")


def responses(kind: type[Response], update: Update) -> Iterable[Response]:
    """Returns the update's message, after the messages for a long prompt's log probabilities."""
    message = kind(request_id=update.request.request_id)
    for delta in update.deltas:
        _write_delta(message.outputs.add(), delta, update.request.tokenizer)
    if update.end is not None:
        message.usage.CopyFrom(pb.Usage(**update.end.usage._asdict()))
        message.usage.reasoning_tokens = update.end.num_reasoning_tokens
        if (use := update.end.speculation).num_runs:
            message.usage.speculation.CopyFrom(pb.SpeculationUse(**use._asdict()))
        message.timings.CopyFrom(_timings(update.end))
        if update.end.receipt is not None:
            message.receipt = json.dumps(update.end.receipt)
    if update.prompt_logprobs:
        return _after_prompt_logprobs(kind, update, message)
    return (message,)


def _after_prompt_logprobs(
    kind: type[Response], update: Update, last: Response
) -> Iterator[Response]:
    """Yields messages with the prompt's log probabilities; the last ones go into `last`."""
    message: Response | None = None
    for part in _prompt_logprobs(update):
        if message is not None:
            yield message
        message = kind(request_id=update.request.request_id, prompt_logprobs=part)
    if message is not None:
        last.prompt_logprobs.extend(message.prompt_logprobs)
    yield last


def _prompt_logprobs(update: Update) -> Iterator[list[pb.TokenLogprobs]]:
    """Yields the prompt's log probabilities in runs of at most MAX_RUN_BYTES."""
    tokenizer = update.request.tokenizer
    most_alternatives = max(len(one.top_token_ids) for one in update.prompt_logprobs)
    most_bytes = tokenizer.vocabulary.max_token_bytes
    token_bytes = 3 * most_bytes + 24  # a replacement character has three bytes
    length = max(1, MAX_RUN_BYTES // ((1 + most_alternatives) * token_bytes))
    pairs = zip(update.request.prompt_token_ids[1:], update.prompt_logprobs, strict=True)
    while run := [_logprobs(*pair, tokenizer) for pair in islice(pairs, length)]:
        yield run


def _write_delta(output: pb.SequenceDelta, delta: Delta, tokenizer: Tokenizer) -> None:
    if delta.index:  # setting a field costs time even for its default
        output.index = delta.index
    if delta.text:
        output.text = delta.text
    if delta.reasoning:
        output.reasoning = delta.reasoning
    output.token_ids.extend(delta.token_ids)
    if delta.logprobs:
        generated = delta.token_ids[-len(delta.logprobs) :]  # an echoed prompt's tokens come first
        pairs = zip(generated, delta.logprobs, strict=True)
        output.logprobs.extend(_logprobs(*pair, tokenizer) for pair in pairs)
    for call in delta.tool_calls:
        output.tool_calls.add(
            index=call.index, id=call.id, name=call.name, arguments=call.arguments
        )
    if delta.finish is not None:
        output.finish.CopyFrom(_finish(delta.finish))


def _finish(finish: Finish) -> pb.Finish:
    return pb.Finish(
        reason=_REASONS[finish.reason],
        stop=finish.stop,
        stop_token_id=finish.stop_token_id,
        error_message=finish.error_message,
        score=finish.score,
    )


def _logprobs(token_id: int, logprobs: TokenLogprobs, tokenizer: Tokenizer) -> pb.TokenLogprobs:
    def one(token_id: int, logprob: float, rank: int) -> pb.TokenLogprob:
        text = tokenizer.vocabulary.token_text(token_id)
        return pb.TokenLogprob(token_id=token_id, text=text, logprob=logprob, rank=rank)

    top = zip(logprobs.top_token_ids, logprobs.top_logprobs, strict=True)
    return pb.TokenLogprobs(
        sampled=one(token_id, logprobs.logprob, logprobs.rank),
        top=[one(*pair, rank) for rank, pair in enumerate(top, start=1)],
    )


def _timings(end: End) -> pb.Timings:
    times = end.timings
    return pb.Timings(
        queued=_duration(times.queued_ns),
        prefill=_duration(times.prefill_ns),
        decode=_duration(times.decode_ns),
        preempted=_duration(times.preempted_ns),
        time_to_first_token=_duration(end.time_to_first_token_ns),
    )


def _duration(nanoseconds: int | None) -> Duration | None:
    if nanoseconds is None:
        return None
    seconds, nanos = divmod(nanoseconds, 1_000_000_000)
    return Duration(seconds=seconds, nanos=nanos)
