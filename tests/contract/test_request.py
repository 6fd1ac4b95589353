"""What a scheduler reads of a request is what the router has asked."""

import pytest

from signalbox_contract import request
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.prefix_comparison import PrefixCause, PrefixComparison
from signalbox_contract.request import (
    BeamSearchParams,
    DeliveredSequence,
    Request,
    SessionPause,
)
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import FinishReason
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb

PLAIN = Request(
    request_id="a",
    prompt_token_ids=[1, 2],
    params=SamplingParams(top_k=3, temperature=0.5),
    max_tokens=4,
)
FULL = Request(
    handle=(1 << 63) - 1,
    request_id="a",
    prompt_token_ids=[1, 2],
    params=SamplingParams(stop_token_ids=(7,), structured_output=("regex", "a+")),
    max_tokens=4,
    max_tokens_is_default=True,
    num_sequences=3,
    beam_search=BeamSearchParams(width=5, length_penalty=-0.5, early_stopping=True),
    timeout_ns=0,
    tenant="t",
    payer="p",
    priority=-3,
    cache_salt="s",
    adapter="ad",
    traceparent="tp",
    tracestate="ts",
    nonce=(1 << 64) - 1,
    attempt=2,
    age_ns=8,
    delivered=(
        DeliveredSequence([5, 6], None),
        *(DeliveredSequence([7], reason) for reason in FinishReason),
    ),
    num_delivered_prompt_logprobs=1,
    snapshot_positions=(1, 2),
    no_speculation=True,
    prediction=(6, 5),
    prewarm=True,
    session=bytes(range(16)),
    keep_ns=7,
    prefix=PrefixComparison(PrefixCause.SYSTEM_CHANGED, 64, 7, "system", True),
)


@pytest.mark.parametrize("asked", [PLAIN, FULL])
def test_a_request_comes_as_it_was_asked(asked: Request) -> None:
    message = pb.Request.FromString(request.encode(asked).SerializeToString())
    assert request.decode(message) == asked


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"handle": 1 << 63}, "handle"),
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"num_sequences": 0}, "num_sequences"),
        ({"snapshot_positions": [0]}, "snapshot_positions"),
        ({"snapshot_positions": [2, 1]}, "snapshot_positions"),
        ({"snapshot_positions": [2, 2]}, "snapshot_positions"),
        ({"snapshot_positions": [3]}, "snapshot_positions"),
        ({"snapshot_positions": [*range(1, 18)]}, "snapshot_positions"),
        ({"delivered": [pb.DeliveredSequence(finish_reason=99)]}, "delivered.finish_reason"),  # type: ignore[arg-type]
        ({"delivered": [pb.DeliveredSequence(token_ids=b"abc")]}, "delivered.token_ids"),
        ({"session": bytes(15)}, "session"),
        ({"session": bytes(17)}, "session"),
        ({"prefix": explain_pb2.PrefixComparison()}, "prefix.cause"),
        ({"prefix": explain_pb2.PrefixComparison(cause=5, path="x" * 65)}, "prefix.path"),
    ],
)
def test_what_no_router_sends_is_refused_by_name(changes: dict[str, object], field: str) -> None:
    message = request.encode(PLAIN)
    for name in changes:
        message.ClearField(name)  # type: ignore[arg-type]
    message.MergeFrom(pb.Request(**changes))  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as refused:
        request.decode(message)
    assert refused.value.field == field


def test_a_time_that_no_router_keeps_is_cut_to_a_month() -> None:
    message = request.encode(PLAIN)
    message.timeout_ns = message.age_ns = message.keep_ns = (1 << 64) - 1
    read = request.decode(message)
    assert read.timeout_ns == read.age_ns == read.keep_ns == 30 * 86_400 * 10**9


@pytest.mark.parametrize("called_tool", [True, False])
def test_a_pause_comes_as_it_was_told(called_tool: bool) -> None:
    pause = SessionPause(bytes(range(16)), called_tool)
    message = pb.SessionPause.FromString(request.encode_pause(pause).SerializeToString())
    assert request.decode_pause(message) == pause


@pytest.mark.parametrize("session", [b"", bytes(15), bytes(17)])
def test_a_pause_of_no_session_is_refused(session: bytes) -> None:
    with pytest.raises(InvalidArgument, match="session"):
        request.decode_pause(pb.SessionPause(session=session))


def test_the_causes_of_a_comparison_are_those_of_the_message() -> None:
    names = {f"PREFIX_CAUSE_{cause.name}": cause.value for cause in PrefixCause}
    assert names | {"PREFIX_CAUSE_UNSPECIFIED": 0} == dict(explain_pb2.PrefixCause.items())
