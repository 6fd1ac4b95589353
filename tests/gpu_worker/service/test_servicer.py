"""WorkerService over a real connection."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from signalbox_contract.columns import pack_int32, pack_int64, unpack_int32
from signalbox_contract.tokenizer_files import hash_files
from signalbox_protos.worker.v1 import worker_pb2 as pb
from tests.gpu_worker.served_worker import EPOCH, PROMPT, GatedRunner, make_group, serving
from tests.simulated_model import expected_tokens


def first(step_id: int = 1) -> pb.ExecuteModelRequest:
    group = make_group(1, PROMPT, [3, 1, 2, 7])
    return pb.ExecuteModelRequest(epoch=EPOCH, step_id=step_id, new_groups=[group])


def decode(step_id: int, *, seq_id: int = 1, epoch: int = EPOCH) -> pb.ExecuteModelRequest:
    running = pb.RunningSequences(seq_ids=pack_int64([seq_id]), num_new_tokens=pack_int32([1]))
    return pb.ExecuteModelRequest(epoch=epoch, step_id=step_id, running=running)


async def send(*requests: pb.ExecuteModelRequest) -> AsyncIterator[pb.ExecuteModelRequest]:
    for request in requests:
        yield request


async def status_of(call: AsyncIterator[object]) -> tuple[grpc.StatusCode, int]:
    """Returns the code that a stream ends with, and how many answers came before."""
    num_answers = 0
    try:
        async for _ in call:
            num_answers += 1
    except grpc.aio.AioRpcError as error:
        return error.code(), num_answers
    return grpc.StatusCode.OK, num_answers


async def test_steps_sent_ahead_are_answered_in_order() -> None:
    async with serving() as stub:
        requests = [first(), *(decode(k) for k in range(2, 9))]
        answers = [answer async for answer in stub.ExecuteModel(send(*requests))]
    assert [answer.step_id for answer in answers] == list(range(1, 9))
    drawn = [int(unpack_int32(answer.token_ids)[0]) for answer in answers]
    assert drawn == expected_tokens(PROMPT, num_tokens=8)


async def test_a_broken_stream_loses_no_step() -> None:
    runner = GatedRunner()
    async with serving(runner) as stub:
        runner.gate.clear()
        broken = stub.ExecuteModel()
        await broken.write(first())
        await broken.write(decode(2))
        await asyncio.sleep(0.1)
        broken.cancel()
        runner.gate.set()
        again = stub.ExecuteModel(send(first(), decode(2), decode(3)))
        answers = [answer async for answer in again]
    drawn = [int(unpack_int32(answer.token_ids)[0]) for answer in answers]
    assert drawn == expected_tokens(PROMPT, num_tokens=3)
    assert runner.num_executed == 3


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (decode(2, seq_id=9), grpc.StatusCode.INVALID_ARGUMENT),
        (decode(3), grpc.StatusCode.FAILED_PRECONDITION),
        (decode(2, epoch=8), grpc.StatusCode.ABORTED),
        (
            pb.ExecuteModelRequest(epoch=EPOCH, step_id=2, finished_seq_ids=b"123"),
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
    ids=["unknown sequence", "gap", "epoch", "cut column"],
)
async def test_a_wrong_step_ends_the_stream_after_the_answers_before_it(
    wrong: pb.ExecuteModelRequest, code: grpc.StatusCode
) -> None:
    async with serving() as stub:
        assert await status_of(stub.ExecuteModel(send(first(), wrong))) == (code, 1)
        assert await status_of(stub.ExecuteModel(send(decode(2)))) == (grpc.StatusCode.OK, 1)


async def test_info_and_tokenizer_are_served_while_a_step_runs() -> None:
    runner = GatedRunner()
    async with serving(runner) as stub:
        runner.gate.clear()
        call = stub.ExecuteModel()
        await call.write(first())
        info = await stub.GetWorkerInfo(pb.GetWorkerInfoRequest())
        files: dict[str, bytes] = {}
        async for part in stub.GetTokenizer(pb.GetTokenizerRequest()):
            files[part.file_name] = files.get(part.file_name, b"") + part.chunk
        runner.gate.set()
        assert (await call.read()).step_id == 1
        await call.done_writing()
    assert info.epoch == EPOCH
    assert info.capacity.num_gpu_blocks == 16
    assert list(files) == ["tokenizer.json", "tokenizer_config.json"]
    assert info.model.tokenizer_sha256 == hash_files(files)


async def test_a_sender_that_does_not_wait_is_not_read_without_bound() -> None:
    runner = GatedRunner()
    async with serving(runner) as stub:
        runner.gate.clear()
        call = stub.ExecuteModel(send(first(), *(decode(k) for k in range(2, 7))))
        await asyncio.sleep(0.1)
        # Step 6 is not submitted: on this stream it is not read, on another it would be a gap.
        assert await status_of(stub.ExecuteModel(send(decode(6)))) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            0,
        )
        runner.gate.set()
        assert await status_of(call) == (grpc.StatusCode.OK, 6)


async def test_a_cache_that_is_too_large_is_refused() -> None:
    async with serving() as stub:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.InitCacheEngine(pb.InitCacheEngineRequest(epoch=EPOCH, num_gpu_blocks=17))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
