"""A worker that answers what no step can mean loses its lease, and no other worker its own."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest

from signalbox_contract.columns import (
    pack_float32,
    pack_int32,
    pack_int64,
    unpack_int32,
    unpack_int64,
)
from signalbox_contract.pooling import PoolingParams, encode
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from signalbox_worker.service.servicer import WorkerServicer
from tests.integration import stack
from tests.integration.stack import (
    Router,
    RunningScheduler,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.simulated_model import expected_tokens, expected_vector
from tests.waiting import eventually

PROMPT = list(range(20))
POOLING = SIMULATED_POOLING["mean"]

Spoil = Callable[[pb.ExecuteModelResponse], None]


def cut_tokens(answer: pb.ExecuteModelResponse) -> None:
    answer.token_ids = answer.token_ids[:-4]


def tear_tokens(answer: pb.ExecuteModelResponse) -> None:
    answer.token_ids += b"\0"


def put_token(token_id: int) -> Spoil:
    def put(answer: pb.ExecuteModelResponse) -> None:
        answer.token_ids = pack_int32([token_id] * len(unpack_int32(answer.token_ids)))

    return put


def make_one_run(answer: pb.ExecuteModelResponse) -> None:
    """Reports the tokens of three branches as three tokens of one."""
    answer.num_tokens = pack_int32([3])
    answer.seq_ids, answer.branches = answer.seq_ids[:8], b""


def report_no_token(answer: pb.ExecuteModelResponse) -> None:
    answer.logprobs.add(row=0, rank=1, top_token_ids=[1 << 31], top_logprobs=[0.0])


def skip_step(answer: pb.ExecuteModelResponse) -> None:
    answer.step_id += 1


def leave_out_rows(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids = answer.branches = answer.token_ids = b""


def repeat_rows(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids += answer.seq_ids
    answer.branches += answer.branches
    answer.token_ids += answer.token_ids


def put_unknown_sequences(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids = pack_int64(unpack_int64(answer.seq_ids) + (1 << 40))


def fail_unknown_sequence(answer: pb.ExecuteModelResponse) -> None:
    answer.errors.add(seq_id=1 << 40, code=13, message="failed")


def fail_all(answer: pb.ExecuteModelResponse) -> None:
    for seq_id in sorted(set(unpack_int64(answer.seq_ids).tolist())):
        answer.errors.add(seq_id=seq_id, code=13, message="failed")
    leave_out_rows(answer)


def answer_another_epoch(answer: pb.ExecuteModelResponse) -> None:
    answer.epoch ^= 1


def report_time(field: str) -> Spoil:
    return lambda answer: setattr(answer.timings, field, (1 << 64) - 1)


def report_masks(*cpu_ns: int, seq_ids: list[int] | None = None) -> Spoil:
    """By default of the sequences that drew, each once."""

    def spoil(answer: pb.ExecuteModelResponse) -> None:
        drew = sorted(set(unpack_int64(answer.seq_ids).tolist()))
        answer.masks.seq_ids = pack_int64(drew * len(cpu_ns) if seq_ids is None else seq_ids)
        answer.masks.cpu_ns = pack_int64(list(cpu_ns))

    return spoil


def report_prompt_of_another(answer: pb.ExecuteModelResponse) -> None:
    answer.prompt_logprobs.add(seq_id=1 << 40, first_position=1)


def report_beyond_prompt(answer: pb.ExecuteModelResponse) -> None:
    (seq_id,) = set(unpack_int64(answer.seq_ids).tolist())
    run = answer.prompt_logprobs.add(seq_id=seq_id, first_position=1)
    for _ in PROMPT:
        run.logprobs.add()


def leave_out_vector(answer: pb.ExecuteModelResponse) -> None:
    answer.ClearField("pooled")


def halve_vector(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.values = answer.pooled.values[: 2 * POOLING.num_outputs]


def tear_vector(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.values += b"\0"


def put_no_number(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.values = pack_float32([float("nan")] * POOLING.num_outputs)


def put_vector_of_another(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.seq_ids = pack_int64([1 << 40])


def draw_instead(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids, answer.token_ids = answer.pooled.seq_ids, pack_int32([5])
    answer.ClearField("pooled")


def draw_besides(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids, answer.token_ids = answer.pooled.seq_ids, pack_int32([5])


@contextlib.asynccontextmanager
async def one_that_is_faulty(
    spoil: Spoil, monkeypatch: pytest.MonkeyPatch, **config: Any
) -> AsyncIterator[tuple[RunningScheduler, Router]]:
    """Two workers, of which the one that answers first spoils that answer."""
    is_spoilt = False

    class Faulty(WorkerServicer):
        async def ExecuteModel(self, requests: object, context: object) -> AsyncIterator[object]:
            nonlocal is_spoilt
            async for answer in super().ExecuteModel(requests, context):  # type: ignore[arg-type]
                if not is_spoilt:
                    is_spoilt = True
                    spoil(answer)
                yield answer

    monkeypatch.setattr(stack, "WorkerServicer", Faulty)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(**config)),
        running_worker(scheduler.address, simulated(**config)),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        yield scheduler, client
        scheduler.cluster.check()
        assert len(scheduler.cluster.requests) == 0


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (leave_out_rows, "no token for branch 0 of sequence"),
        (repeat_rows, "6 of 3 tokens"),
        (make_one_run, "no token for branch 1 of sequence"),
        (put_unknown_sequences, "which is not in the step"),
        (fail_unknown_sequence, "sequence 1099511627776, which is not in the step"),
        (fail_all, "it failed every sequence of step 1: failed"),
        (answer_another_epoch, "of another lease"),
        (report_prompt_of_another, "prompt log probabilities of sequence 1099511627776"),
        (report_beyond_prompt, "prompt log probabilities of positions [1, 21)"),
        (cut_tokens, "cannot be read: token_ids: allowed: a column of 3; given: 'a column of 2'"),
        (
            tear_tokens,
            "cannot be read: token_ids: allowed: a multiple of 4 bytes; given: '13 bytes'",
        ),
        (put_token(-1), "token -1 of a vocabulary of 512"),
        (put_token(512), "token 512 of a vocabulary of 512"),
        (put_token((1 << 31) - 1), "token 2147483647 of a vocabulary"),
        (report_no_token, "token 2147483648 of a vocabulary"),
        *[
            (report_time(field), "a time of 18446744074 s")
            for field in ("wait_ns", "swap_ns", "forward_ns", "sample_ns")
        ],
        (report_masks(1, seq_ids=[1 << 40]), "a mask of sequence 1099511627776, which is not in"),
        (report_masks(1, 1), "2 masks of 1 sequences"),
        (report_masks(1, seq_ids=[]), "masks.cpu_ns: allowed: a column of 0"),
        (report_masks(-1), "masks.cpu_ns: allowed: at least 0; given: -1"),
        (report_masks((1 << 63) - 1), "a mask of 9223372037 s"),
        (skip_step, "it answered step 2 instead of 1"),
    ],
)
async def test_a_request_goes_on_where_a_worker_answers_nonsense(
    spoil: Spoil,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with one_that_is_faulty(spoil, monkeypatch, num_gpu_blocks=32) as (_, client):
        await client.add(1, PROMPT, num_sequences=3)
        (got,) = await client.ended(1)
        await eventually(lambda: "the lease is over" in caplog.text)
        assert reason in caplog.text
        got.assert_served()
        assert got.tokens == {i: expected_tokens(PROMPT, num_tokens=16, branch=i) for i in range(3)}


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (leave_out_vector, "no vector for sequence"),
        (halve_vector, "16 of 32 elements for sequence"),
        (tear_vector, "cannot be read: pooled.values"),
        (put_no_number, "a vector that is not finite for sequence"),
        (put_vector_of_another, "vector for sequence"),
        (draw_instead, "1 tokens of a worker that pools"),
        (draw_besides, "1 tokens of a worker that pools"),
    ],
)
async def test_a_prompt_is_pooled_elsewhere_and_the_worker_joins_again_after_a_check(
    spoil: Spoil,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with one_that_is_faulty(spoil, monkeypatch, pooling=POOLING) as (scheduler, client):
        await client.add(1, PROMPT, max_tokens=1, pooling=encode(PoolingParams()))
        (got,) = await client.ended(1)
        await eventually(lambda: "the lease is over" in caplog.text)
        assert reason in caplog.text
        got.assert_served()
        assert got.vector is not None
        assert np.array_equal(got.vector, expected_vector(PROMPT, model=POOLING))
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
