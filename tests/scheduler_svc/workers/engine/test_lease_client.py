"""The step stream to a worker: it breaks, is opened again, and loses no step."""

import asyncio

import grpc
import pytest

from signalbox_contract.columns import int32s, int64s
from signalbox_contract.errors import Code
from signalbox_contract.step import decode_step
from signalbox_contract.step_result import StepResult, encode_result
from signalbox_contract.updates import RequestFailure
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.workers.engine import lease_client
from signalbox_scheduler.workers.engine.lease_client import LeaseClient, WorkerLostError
from signalbox_scheduler.workers.engine.probe_step import make_check_plan
from tests.waiting import run_ready_tasks

EPOCH = 7


class Stream:
    """A stream of a worker that answers each step by token 1, until it breaks."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()  # else what is written waits for the connection
        self.takes.set()
        self.step_ids: list[int] = []
        self.breaks = asyncio.Event()
        self.code = grpc.StatusCode.UNAVAILABLE
        self.loses_states = set[int]()  # in these steps
        self._is_writing = False
        self._requests: asyncio.Queue[pb.ExecuteModelRequest] = asyncio.Queue()

    async def write(self, request: pb.ExecuteModelRequest) -> None:
        assert not self._is_writing, "gRPC takes one message of a stream at a time"
        self._is_writing = True
        await self.takes.wait()
        self._is_writing = False
        self.step_ids.append(request.step_id)
        self._requests.put_nowait(request)

    async def read(self) -> pb.ExecuteModelResponse:
        if self.breaks.is_set():
            raise grpc.aio.AioRpcError(self.code, grpc.aio.Metadata(), grpc.aio.Metadata())
        step = decode_step(await self._requests.get())
        result = StepResult(
            epoch=EPOCH, step_id=step.step_id, seq_ids=int64s([1]), token_ids=int32s([1])
        )
        if step.step_id in self.loses_states:
            lost = RequestFailure(Code.ABORTED, "the step failed")
            result = StepResult(epoch=EPOCH, step_id=step.step_id, failures={1: lost})
        return encode_result(result)

    def cancel(self) -> None: ...


def make_client(*streams: Stream) -> LeaseClient:
    client, opened = LeaseClient(address="127.0.0.1:1", epoch=EPOCH), iter(streams)
    client._stub.ExecuteModel = lambda: next(opened)
    client._vocab_size = 2
    client._call = client._stub.ExecuteModel()
    return client


def make_plan(step_id: int) -> StepPlan:
    plan = make_check_plan()
    plan.step_id = step_id
    return plan


async def test_a_step_that_is_planned_while_the_stream_is_opened_again_follows_the_others() -> None:
    broken, again = Stream(), Stream()
    client = make_client(broken, again)
    await client.send(make_plan(1))
    broken.breaks.set()
    again.takes.clear()
    answer = asyncio.create_task(client.read())
    await run_ready_tasks()
    sending = asyncio.create_task(client.send(make_plan(2)))
    await run_ready_tasks()
    again.takes.set()
    await sending
    assert [(await answer).step_id, (await client.read()).step_id] == [1, 2]
    await client.send(make_plan(3))
    assert (await client.read()).step_id == 3
    assert again.step_ids == [1, 2, 3]
    await client.close()


@pytest.mark.parametrize("code", [grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL])
async def test_a_stream_that_breaks_with_any_code_of_the_transport_is_opened_again(
    code: grpc.StatusCode,
) -> None:
    broken, again = Stream(), Stream()
    client = make_client(broken, again)
    await client.send(make_plan(1))
    broken.code = code
    broken.breaks.set()
    assert (await client.read()).step_id == 1
    assert again.step_ids == [1]
    await client.close()


async def test_breaks_with_time_between_lose_no_idle_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An idle worker answers nothing that would show that its stream works."""
    monkeypatch.setattr(lease_client, "RECONNECT_INTERVAL_S", 0.0)
    streams = [Stream() for _ in range(3)]
    for broken in streams[:2]:
        broken.breaks.set()
    client = make_client(*streams)
    answer = asyncio.create_task(client.read())
    await run_ready_tasks()
    await client.send(make_plan(1))
    assert (await answer).step_id == 1
    assert streams[2].step_ids == [1]
    await client.close()


async def test_a_worker_that_loses_states_in_two_steps_in_a_row_is_lost() -> None:
    stream = Stream()
    client = make_client(stream)
    stream.loses_states = {2, 3, 5, 6}
    plans = {step_id: make_plan(step_id) for step_id in range(1, 7)}
    plans[3].seqs[0].group.suspect(1)  # it was planned before the answer to the step before
    for step_id, plan in plans.items():
        await client.send(plan)
        if step_id < 6:
            assert (await client.read()).step_id == step_id
    with pytest.raises(WorkerLostError, match="it failed every sequence of step 6"):
        await client.read()
    await client.close()
