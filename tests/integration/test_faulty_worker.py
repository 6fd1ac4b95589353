"""A worker that answers what no step can mean loses its lease, and nobody else anything."""

from collections.abc import AsyncIterator, Callable

import pytest

from gpu_worker.servicer import WorkerServicer
from gpu_worker.simulated import expected_tokens
from protos.worker.v1 import worker_pb2 as pb
from rpc.columns import pack_int32, unpack_int32
from scheduler_svc.config import SchedulerConfig
from tests.integration import stack
from tests.integration.stack import router, running_scheduler, running_worker, simulated
from tests.waiting import eventually

PROMPT = list(range(20))


def cut_tokens(answer: pb.ExecuteModelResponse) -> None:
    answer.token_ids = answer.token_ids[:-4]


def tear_tokens(answer: pb.ExecuteModelResponse) -> None:
    answer.token_ids += b"\0"


def put_token(token_id: int) -> Callable[[pb.ExecuteModelResponse], None]:
    def put(answer: pb.ExecuteModelResponse) -> None:
        answer.token_ids = pack_int32([token_id] * len(unpack_int32(answer.token_ids)))

    return put


def report_no_token(answer: pb.ExecuteModelResponse) -> None:
    answer.logprobs.add(row=0, rank=1, top_token_ids=[1 << 31], top_logprobs=[0.0])


def skip_step(answer: pb.ExecuteModelResponse) -> None:
    answer.step_id += 1


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (cut_tokens, "3 sequences with 2 tokens"),
        (tear_tokens, "cannot be read: column: '13 bytes'"),
        (put_token(-1), "token -1 of a vocabulary of 512"),
        (put_token(512), "token 512 of a vocabulary of 512"),
        (put_token((1 << 31) - 1), "token 2147483647 of a vocabulary"),
        (report_no_token, "token 2147483648 of a vocabulary"),
        (skip_step, "it answered step 2 instead of 1"),
    ],
)
async def test_a_request_goes_on_where_a_worker_answers_nonsense(
    spoil: Callable[[pb.ExecuteModelResponse], None],
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
        running_worker(scheduler.address, simulated(num_gpu_blocks=32)),
        running_worker(scheduler.address, simulated(num_gpu_blocks=32)),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.engines) == 2)
        await client.add(1, PROMPT, num_sequences=3)
        (got,) = await client.ended(1)
        await eventually(lambda: "the lease is over" in caplog.text)
        assert reason in caplog.text
        assert got.end is not None
        assert got.end.code == 0
        assert got.tokens == {i: expected_tokens(PROMPT, num_tokens=16, branch=i) for i in range(3)}
        scheduler.cluster.check()
        assert len(scheduler.cluster) == 0
