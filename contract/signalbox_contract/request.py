"""A request from a router to a scheduler: one generation, with its codec."""

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import NamedTuple

from signalbox_contract import pooling, prefix_comparison, sampling_codec
from signalbox_contract.columns import int32_list, pack_int32
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingParams
from signalbox_contract.prefix_comparison import PrefixComparison
from signalbox_contract.sampling_params import Limit, SamplingParams
from signalbox_contract.updates import FinishReason
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb

_MAX_HANDLE = (1 << 63) - 1
"""Updates have the handles in a column of int64."""
_SESSION_BYTES = 16
"""Length of a session's hash."""
_MAX_SNAPSHOT_POSITIONS = 16
"""Most positions that a request names; a router names two."""
MAX_AGE_S = 30 * 86_400
"""Longest age and longest timeout that are read. No router keeps a request for a month."""
_REASONS = {reason.value: reason for reason in FinishReason}


PRIORITY = Limit(int, least=-1000, most=1000)
"""Its bounds limit how long a request may be kept waiting."""
BEAM_LIMITS = {
    "width": Limit(int, least=1, most=32),
    "length_penalty": Limit(float, least=-5, most=5),  # the power of any length is a float32
}
NOT_WITH_BEAMS = (
    "logprob_token_ids",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_words",
    "structured_output",
)
"""Sampling parameters that change the log probabilities of tokens, which a search follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearchParams:
    """Parameters of a beam search; scheduler.proto has their meaning."""

    width: int
    length_penalty: float = 1.0
    early_stopping: bool = False


class DeliveredSequence(NamedTuple):
    """Output of a sequence that the router has received in earlier attempts."""

    token_ids: list[int]
    finish_reason: FinishReason | None
    """None if the sequence continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A prompt, and how to continue it; see scheduler.proto for the fields."""

    handle: int = 0
    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    max_tokens_is_default: bool = False
    num_sequences: int = 1
    beam_search: BeamSearchParams | None = None
    timeout_ns: int | None = None
    """Time that is left; None is unlimited."""
    tenant: str = ""
    payer: str = ""
    """Name that the request's work is charged to; empty if that is the tenant."""
    priority: int = 0
    cache_salt: str = ""
    adapter: str = ""
    """SHA-256 of the adapter that computes the request; empty is the base model."""
    traceparent: str = ""
    tracestate: str = ""
    nonce: int = 0
    attempt: int = 0
    """Number of earlier attempts, on streams that have ended."""
    age_ns: int = 0
    """Time since the router sent the first attempt."""
    delivered: tuple[DeliveredSequence, ...] = ()
    """Received output by index; empty if there is none."""
    num_delivered_prompt_logprobs: int = 0
    pooling: PoolingParams | None = None
    """Parameters of pooling; None if the prompt is continued."""
    snapshot_positions: tuple[int, ...] = ()
    """Lengths of prefixes from which later requests are likely to go on; ascending."""
    no_speculation: bool = False
    """True if the request computes no drafts."""
    prediction: tuple[int, ...] = ()
    """Tokens that the client expects as the output; empty if the request names none."""
    prewarm: bool = False
    """True if the prompt is computed, so that later ones find it, and no token is drawn."""
    session: bytes = b""
    """Keyed hash of the session that the client names; empty if it names none."""
    keep_ns: int = 0
    """Time for which the client asks that the prefix be kept; 0 if it asks for none."""
    model_wait_ns: int = 0
    """Time that the request waited at its router until its model was loaded."""
    prefix: PrefixComparison | None = None
    """Comparison of the prompt with an earlier one of the client; None if nothing was compared."""


class SessionPause(NamedTuple):
    """The end of a session's answer, as its router has read it."""

    session: bytes
    """`Request.session`, which is not empty."""
    called_tool: bool
    """True if the answer calls a tool, so that the session is expected to go on with the result."""


_FIELDS = pb.Request.DESCRIPTOR.fields_by_name
_SAME = [
    one.name
    for one in fields(Request)
    if one.name in _FIELDS and _FIELDS[one.name].message_type is None
]
"""Fields that the message has as they are."""


def encode(request: Request) -> pb.Request:
    message = pb.Request(
        **{name: getattr(request, name) for name in _SAME},
        sampling_params=sampling_codec.encode(request.params),
        trace_context=common_pb2.TraceContext(
            traceparent=request.traceparent, tracestate=request.tracestate
        ),
    )
    if request.pooling is not None:
        message.pooling.CopyFrom(pooling.encode(request.pooling))
    if request.prefix is not None:
        message.prefix.CopyFrom(prefix_comparison.encode(request.prefix))
    if (search := request.beam_search) is not None:
        message.beam_search.width = search.width
        message.beam_search.length_penalty = search.length_penalty
        message.beam_search.early_stopping = search.early_stopping
    for token_ids, reason in request.delivered:
        number = pb.FINISH_REASON_UNSPECIFIED if reason is None else reason.value
        message.delivered.add(token_ids=pack_int32(token_ids), finish_reason=number)
    return message


def decode(message: pb.Request) -> Request:
    """Raises InvalidArgument for a message that no router of ours sends."""
    if message.handle > _MAX_HANDLE:
        raise InvalidArgument("handle", message.handle, f"at most {_MAX_HANDLE}")
    if not message.prompt_token_ids:
        raise InvalidArgument("prompt_token_ids", [], "at least one token")
    for name in ("max_tokens", "num_sequences"):
        if not getattr(message, name):
            raise InvalidArgument(name, 0, "at least 1")
    has_timeout, has_search = message.HasField("timeout_ns"), message.HasField("beam_search")
    own = {
        "prompt_token_ids": list(message.prompt_token_ids),
        "params": sampling_codec.decode(message.sampling_params),
        "beam_search": _decode_beam_search(message.beam_search) if has_search else None,
        "timeout_ns": min(message.timeout_ns, MAX_AGE_S * 10**9) if has_timeout else None,
        "traceparent": message.trace_context.traceparent,
        "tracestate": message.trace_context.tracestate,
        "age_ns": min(message.age_ns, MAX_AGE_S * 10**9),
        "model_wait_ns": min(message.model_wait_ns, MAX_AGE_S * 10**9),
        "delivered": tuple(_decode_delivered(sequence) for sequence in message.delivered),
        "pooling": pooling.decode(message.pooling) if message.HasField("pooling") else None,
        "snapshot_positions": _decode_positions(message) if message.snapshot_positions else (),
        "prediction": tuple(message.prediction),
        "session": _checked_session(message.session),
        "keep_ns": min(message.keep_ns, MAX_AGE_S * 10**9),
        "prefix": prefix_comparison.decode(message.prefix) if message.HasField("prefix") else None,
    }
    return Request(**{name: getattr(message, name) for name in _SAME} | own)


def _checked_session(session: bytes) -> bytes:
    if session and len(session) != _SESSION_BYTES:
        raise InvalidArgument("session", f"{len(session)} bytes", f"{_SESSION_BYTES} bytes or none")
    return session


def _decode_positions(message: pb.Request) -> tuple[int, ...]:
    positions, most = tuple(message.snapshot_positions), len(message.prompt_token_ids)
    if len(positions) > _MAX_SNAPSHOT_POSITIONS:
        allowed = f"at most {_MAX_SNAPSHOT_POSITIONS}"
        raise InvalidArgument("snapshot_positions", f"a list of {len(positions)}", allowed)
    if not all(before < after for before, after in pairwise((0, *positions, most + 1))):
        allowed = f"ascending, from 1 to {most}"
        raise InvalidArgument("snapshot_positions", list(positions), allowed)
    return positions


def _decode_beam_search(message: pb.BeamSearchParams) -> BeamSearchParams:
    return BeamSearchParams(
        width=message.width,
        length_penalty=message.length_penalty,
        early_stopping=message.early_stopping,
    )


def _decode_delivered(message: pb.DeliveredSequence) -> DeliveredSequence:
    reason = _REASONS.get(message.finish_reason)
    if reason is None and message.finish_reason:
        value = int(message.finish_reason)
        raise InvalidArgument("delivered.finish_reason", value, "a FinishReason")
    return DeliveredSequence(int32_list(message.token_ids, "delivered.token_ids"), reason)


def encode_pause(pause: SessionPause) -> pb.SessionPause:
    return pb.SessionPause(session=pause.session, called_tool=pause.called_tool)


def decode_pause(message: pb.SessionPause) -> SessionPause:
    """Raises InvalidArgument for a session that no router of ours names."""
    if not message.session:
        raise InvalidArgument("session", "no bytes", f"{_SESSION_BYTES} bytes")
    return SessionPause(_checked_session(message.session), message.called_tool)
