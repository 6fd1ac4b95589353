"""A result's runs of tokens: branches at one position, and several positions of one branch."""

import struct
from typing import Any

import numpy as np
import pytest

from signalbox_contract.columns import float32s, int32s, int64s, pack_int32, pack_int64
from signalbox_contract.errors import Code, InvalidArgument
from signalbox_contract.logprobs import PromptLogprobs, TokenLogprobs
from signalbox_contract.sections.drafts import DraftCounts, DraftSource
from signalbox_contract.sections.store_moves import MoveResult
from signalbox_contract.step_result import (
    StageTimings,
    StepResult,
    StepTimings,
    decode_result,
    encode_result,
)
from signalbox_contract.updates import RequestFailure
from signalbox_protos.worker.v1 import worker_pb2 as pb

OWN = {5: 2, 6: 0}
"""Own branches of two sequences."""
WHOLE = StepResult(
    epoch=(1 << 64) - 1,
    step_id=3,
    seq_ids=int64s([5, 5, 6]),
    branches=int32s([2, 3, 0]),
    num_tokens=int32s([1, 2, 1]),
    token_ids=int32s([10, 11, 12, 13]),
    logprobs={1: TokenLogprobs(-0.5, 2, [4, 5], [-0.25, -0.5])},
    prompt_logprobs=(PromptLogprobs(6, 1, [TokenLogprobs(-1.5, 1, [], [])]),),
    failures={
        9: RequestFailure(Code.INTERNAL, "logits are not finite"),
        10: RequestFailure(Code.FAILED_PRECONDITION, "every token is suppressed"),
    },
    timings=StepTimings(1, 2, 3, 4, (StageTimings(1, 2, 3, 4, 5, 6), StageTimings(queue_ns=7))),
    max_num_batched_tokens=64,
    moves=(MoveResult(1, 7), MoveResult(2, 3, 4096, 1 << 40, "cancelled")),
    drafts=DraftCounts(int64s([5]), int32s([3]), int32s([DraftSource.TEXT])),
    draw_logits=float32s(np.array([1.5, np.nan, -0.0, 2e-45], dtype=np.float32)),
    draft_offers=int64s([6]),
)


def make_runs(**columns: Any) -> StepResult:
    return StepResult(step_id=1, **columns)


@pytest.mark.parametrize("result", [WHOLE, make_runs()])
def test_a_result_is_what_its_message_decodes_to(result: StepResult) -> None:
    data = encode_result(result).SerializeToString()
    assert decode_result(pb.ExecuteModelResponse.FromString(data)) == result


def test_columns_are_little_endian() -> None:
    message = encode_result(
        make_runs(
            seq_ids=int64s(np.array([1, 2])), token_ids=int32s(np.array([3, 4], dtype=np.int32))
        )
    )
    assert message.seq_ids == struct.pack("<2q", 1, 2)
    assert message.token_ids == struct.pack("<2i", 3, 4)
    assert (message.branches, message.num_tokens) == (b"", b"")


@pytest.mark.parametrize(
    ("columns", "runs"),
    [
        (
            {"seq_ids": int64s([5, 6]), "token_ids": int32s([1, 2])},
            {(5, 2): range(1), (6, 0): range(1, 2)},
        ),
        (
            {
                "seq_ids": int64s([5, 5]),
                "branches": int32s([2, 3]),
                "token_ids": int32s([1, 2]),
            },
            {(5, 2): range(1), (5, 3): range(1, 2)},
        ),
        (
            {"seq_ids": int64s([5]), "num_tokens": int32s([2]), "token_ids": int32s([1, 2])},
            {(5, 2): range(2)},
        ),
    ],
    ids=["one each", "two branches at one position", "two positions of one branch"],
)
def test_a_run_is_known_by_its_sequence_and_branch(
    columns: dict[str, Any], runs: dict[tuple[int, int], range]
) -> None:
    result = make_runs(**columns)
    assert decode_result(encode_result(result)).runs(OWN) == result.runs(OWN) == runs


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"seq_ids": pack_int64([1, 2]), "token_ids": pack_int32([3])}, "token_ids"),
        ({"seq_ids": pack_int64([1]), "branches": pack_int32([0, 1])}, "branches"),
        ({"seq_ids": pack_int64([1]), "num_tokens": pack_int32([1, 1])}, "num_tokens"),
        ({"seq_ids": pack_int64([1]), "num_tokens": pack_int32([0])}, "num_tokens"),
        ({"seq_ids": pack_int64([1]), "num_tokens": pack_int32([2]), "token_ids": pack_int32([3])},
         "token_ids"),
        ({"seq_ids": pack_int64([1]), "token_ids": pack_int32([3]), "draw_logits": bytes(8)},
         "draw_logits"),
        ({"seq_ids": pack_int64([1]), "token_ids": pack_int32([3]), "draw_logits": bytes(3)},
         "draw_logits"),
    ],
)  # fmt: skip
def test_columns_that_do_not_match_are_refused(columns: dict[str, bytes], field: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{field}: "):
        decode_result(pb.ExecuteModelResponse(**columns))


def test_a_failure_that_is_no_refusal_is_internal() -> None:
    message = pb.ExecuteModelResponse(step_id=1)
    message.errors.add(seq_id=1, code=Code.INVALID_ARGUMENT, message="no")
    assert decode_result(message).failures == {1: RequestFailure(Code.INTERNAL, "no")}
