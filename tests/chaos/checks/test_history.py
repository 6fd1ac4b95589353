"""The checker finds what it is there for, one planted fault of a history at a time."""

from collections.abc import Callable

import grpc
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from tests.chaos.checks.history import AFTERMATH_S, Fault, FaultKind, Record, check

TOKENS = [5, 6, 7, 8]
TEXT = "abcd"


def delta(
    *tokens: int, index: int = 0, is_last: bool = False, logprob: float | None = None
) -> pb.GenerateResponse:
    text = "".join(TEXT[TOKENS.index(token)] if token in TOKENS else "?" for token in tokens)
    output = pb.SequenceDelta(index=index, token_ids=tokens, text=text)
    if logprob is not None:
        output.logprobs.add().sampled.logprob = logprob
    if is_last:
        output.finish.reason = pb.FINISH_REASON_LENGTH
    return pb.GenerateResponse(outputs=[output])


def usage() -> pb.GenerateResponse:
    return pb.GenerateResponse(usage=pb.Usage(completion_tokens=4))


def make_record(*messages: pb.GenerateResponse) -> Record:
    record = Record(shape="greedy", began=100.0)
    for message in messages:
        record.add(message)
    return record


def make_whole() -> Record:
    record = make_record(delta(5, 6), delta(7, 8, is_last=True), usage())
    record.end(grpc.StatusCode.OK, "", 101.0)
    return record


def make_broken(code: grpc.StatusCode, *tokens: int, message: str = "") -> Record:
    record = make_record(*([delta(*tokens)] if tokens else []))
    record.end(code, message, 101.0)
    return record


def found(record: Record, *kinds: FaultKind, began: float = 100.5) -> list[str]:
    faults = [Fault(kind=kind, name="", began=began, ended=began) for kind in kinds]
    return check([record], undisturbed={"greedy": make_whole()}, faults=faults)


def test_a_whole_answer_passes() -> None:
    assert found(make_whole()) == []


PLANTED: dict[str, Callable[[], Record]] = {
    "never ended": lambda: make_record(delta(5, 6)),
    "token 1": lambda: make_broken(grpc.StatusCode.CANCELLED, 5, 7),  # one is lost
    "token 2": lambda: make_broken(grpc.StatusCode.CANCELLED, 5, 6, 6),  # one is repeated
    "without its last message": lambda: ended_well(delta(5, 6, 7, 8, is_last=True)),
    "token_ids are not": lambda: ended_well(delta(5, 6, is_last=True), usage()),
    "finish are not": lambda: ended_well(delta(5, 6, 7, 8), usage()),
    "log probabilities of output 0": lambda: ended_well(
        delta(5, 6, 7, 8, is_last=True, logprob=-0.5), usage()
    ),
    "goes on after its end": lambda: ended_well(delta(5, is_last=True), delta(6, 7, 8), usage()),
    "after the last": lambda: ended_well(delta(5, 6, 7, 8, is_last=True), usage(), usage()),
    "ended twice": lambda: ended_well(delta(5, 6, 7, 8, is_last=True), usage(), times=2),
    "output 1 differs": lambda: ended_well(delta(5, index=1)),
    "INTERNAL after 1": lambda: make_broken(grpc.StatusCode.INTERNAL, 5),
    "UNAVAILABLE after 0": lambda: make_broken(grpc.StatusCode.UNAVAILABLE),
    "RESOURCE_EXHAUSTED after 1": lambda: make_broken(grpc.StatusCode.RESOURCE_EXHAUSTED, 5),
}


def ended_well(*messages: pb.GenerateResponse, times: int = 1) -> Record:
    record = make_record(*messages)
    for _ in range(times):
        record.end(grpc.StatusCode.OK, "", 101.0)
    return record


@pytest.mark.parametrize("reason", PLANTED)
def test_what_must_not_happen_is_found(reason: str) -> None:
    lines = found(PLANTED[reason]())
    assert any(reason in line for line in lines), lines


def test_a_stream_that_has_begun_is_excused_by_its_router_alone() -> None:
    record = make_broken(grpc.StatusCode.UNAVAILABLE, 5, 6)
    assert found(record, FaultKind.WORKER, FaultKind.SCHEDULER)
    assert found(record, FaultKind.ROUTER, began=100.5 - AFTERMATH_S - 1)
    assert not found(record, FaultKind.ROUTER)


def test_a_lost_request_is_excused_by_three_lost_workers_and_by_no_fewer() -> None:
    record = make_broken(grpc.StatusCode.INTERNAL, 5, message="3 workers were lost while ...")
    assert found(record, FaultKind.WORKER, FaultKind.WORKER)
    assert not found(record, *[FaultKind.WORKER] * 3)


def test_a_refusal_is_no_loss_where_there_was_a_fault() -> None:
    assert not found(make_broken(grpc.StatusCode.UNAVAILABLE), FaultKind.WORKER)
    assert not found(make_broken(grpc.StatusCode.RESOURCE_EXHAUSTED))
