"""A worker whose vectors are none of the model loses its lease; the prompt is pooled elsewhere."""

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from contract.columns import pack_float32, pack_int32, pack_int64
from contract.pooling import PoolingParams, encode
from gpu_worker.servicer import WorkerServicer
from gpu_worker.simulated.simulated_pooler import SIMULATED_POOLING, expected_vector
from protos.worker.v1 import worker_pb2 as pb
from scheduler_svc.config import SchedulerConfig
from tests.integration import stack
from tests.integration.stack import router, running_scheduler, running_worker, simulated
from tests.waiting import eventually

PROMPT = list(range(20))
MODEL = SIMULATED_POOLING["mean"]

Spoil = Callable[[pb.ExecuteModelResponse], None]


def leave_out(answer: pb.ExecuteModelResponse) -> None:
    answer.ClearField("pooled")


def halve(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.values = answer.pooled.values[: 2 * MODEL.num_outputs]


def tear(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.values += b"\0"


def put_no_number(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.values = pack_float32([float("nan")] * MODEL.num_outputs)


def put_unknown_sequence(answer: pb.ExecuteModelResponse) -> None:
    answer.pooled.seq_ids = pack_int64([1 << 40])


def draw_instead(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids, answer.token_ids = answer.pooled.seq_ids, pack_int32([5])
    answer.ClearField("pooled")


def draw_besides(answer: pb.ExecuteModelResponse) -> None:
    answer.seq_ids, answer.token_ids = answer.pooled.seq_ids, pack_int32([5])


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (leave_out, "no vector for sequence"),
        (halve, "16 of 32 elements for sequence"),
        (tear, "cannot be read: pooled.values"),
        (put_no_number, "a vector that is not finite for sequence"),
        (put_unknown_sequence, "vector for sequence"),
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
    is_spoilt = False

    class Faulty(WorkerServicer):
        """Answers the first step wrongly."""

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
        running_worker(scheduler.address, simulated(pooling=MODEL)),
        running_worker(scheduler.address, simulated(pooling=MODEL)),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        await client.add(1, PROMPT, max_tokens=1, pooling=encode(PoolingParams()))
        (got,) = await client.ended(1)
        await eventually(lambda: "the lease is over" in caplog.text)
        assert reason in caplog.text
        assert got.end is not None
        assert got.end.code == 0
        assert got.vector is not None
        assert np.array_equal(got.vector, expected_vector(PROMPT, model=MODEL))
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        scheduler.cluster.check()
        assert len(scheduler.cluster.requests) == 0
