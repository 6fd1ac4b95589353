"""Requests whose masks are dear get few of the steps that others are in, by what a worker reports.

The worker is a double at the wire: it computes no such masks, and reports costs as it is told to.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from signalbox_contract.columns import int64_list, pack_int64
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import explain_pb2
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.service.servicer import WorkerServicer
from tests.integration import stack
from tests.integration.stack import (
    Router,
    count,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.waiting import eventually

MS = 1_000_000
STEP_NS = 10 * MS
"""Time of a step without its masks, as the worker reports it."""
NUM_TOKENS = 300
PLAIN = 0
"""Handle of a request without masks."""
CONSTRAINED = common_pb2.SamplingParams(
    top_p=1.0, structured_output=common_pb2.StructuredOutput(regex="[a-z]+")
)
Costs = Callable[[int, int], int]
"""Nanoseconds of a request's mask, by its handle and the number of its masks before."""


class ReportingWorker(WorkerServicer):
    """Reports the costs that it is told, and records which requests drew in each step."""

    costs: Costs
    steps: list[list[int]]
    mask_ns: list[int]
    """What all masks of each step took."""
    measured: set[int]
    """Requests of whose masks the worker itself reports a cost."""

    async def ExecuteModel(
        self, requests: AsyncIterator[pb.ExecuteModelRequest], context: Any
    ) -> AsyncIterator[pb.ExecuteModelResponse]:
        handles: dict[int, int] = {}

        async def seen() -> AsyncIterator[pb.ExecuteModelRequest]:
            async for request in requests:
                for group in request.new_groups:
                    handle = int(group.request_id.removeprefix("r"))
                    handles.update({seq.seq_id: handle for seq in group.sequences})
                yield request

        async for answer in super().ExecuteModel(seen(), context):
            drew = [handles[seq_id] for seq_id in int64_list(answer.seq_ids)]
            self.measured.update(map(handles.__getitem__, int64_list(answer.masks.seq_ids)))
            costs = [self.costs(one, sum(step.count(one) for step in self.steps)) for one in drew]
            self.steps.append(drew)
            self.mask_ns.append(sum(costs))
            answer.timings.forward_ns, answer.timings.sample_ns = STEP_NS, 0
            answer.masks.seq_ids, answer.masks.cpu_ns = answer.seq_ids, pack_int64(costs)
            yield answer


@contextlib.asynccontextmanager
async def reporting(
    monkeypatch: pytest.MonkeyPatch, costs: Costs
) -> AsyncIterator[tuple[Router, ReportingWorker]]:
    class Double(ReportingWorker):
        pass

    Double.costs, Double.steps, Double.mask_ns = staticmethod(costs), [], []
    Double.measured = set()
    monkeypatch.setattr(stack, "WorkerServicer", Double)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated()),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: bool(scheduler.cluster.step_loops))
        yield client, Double  # type: ignore[misc]
        await stack.assert_idle(scheduler)


async def sat_out(client: Router, handle: int) -> int:
    answer = await client.stub.Explain(explain_pb2.ExplainRequest(request_id=f"r{handle}"))
    return int(count(answer.samples, "num_steps_sat_out"))


def beside_plain(worker: ReportingWorker) -> tuple[list[list[int]], int]:
    """Returns the steps that the plain request drew in, and what their masks took."""
    pairs = zip(worker.steps, worker.mask_ns, strict=True)
    found = [(step, mask_ns) for step, mask_ns in pairs if PLAIN in step]
    return [step for step, _ in found], sum(mask_ns for _, mask_ns in found)


@pytest.mark.parametrize(
    "cost",
    [
        pytest.param(lambda _: 10 * MS, id="from the first token"),
        pytest.param(lambda number: 10 * MS if number > 50 else MS // 100, id="late"),
        pytest.param(lambda number: number * MS // 4, id="more with each token"),
        pytest.param(lambda number: 0 if number % 8 else 40 * MS, id="now and then"),
    ],
)
async def test_eight_dear_requests_take_a_small_part_of_the_time_of_another(
    monkeypatch: pytest.MonkeyPatch, cost: Callable[[int], int]
) -> None:
    dear = range(1, 9)

    def costs(handle: int, number: int) -> int:
        return 0 if handle == PLAIN else cost(number)

    async with reporting(monkeypatch, costs) as (client, worker):
        for handle in (PLAIN, *dear):
            num_tokens = NUM_TOKENS if handle == PLAIN else 80
            await client.add(handle, [1, 2, 3], max_tokens=num_tokens)
        for got in await client.ended(PLAIN, *dear):
            got.assert_served()
        steps, mask_ns = beside_plain(worker)
        assert len(steps) == NUM_TOKENS
        assert mask_ns < 0.25 * NUM_TOKENS * STEP_NS
        turns = [sum(handle in step for step in steps) for handle in dear]
        assert min(turns) > 1, "each goes on"
        assert max(turns) <= 2 * min(turns) + 8, "none is preferred"
        explained = await client.stub.Explain(explain_pb2.ExplainRequest(request_id="r1"))
        [event] = [e for e in explained.events if e.kind == explain_pb2.EVENT_KIND_DEAR_MASKS]
        assert count(explained.samples, "num_steps_sat_out")
        assert event.duration_ns


async def test_requests_that_end_before_they_are_known_are_counted_for_their_payer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each draws one token, whose mask is dear. Another payer's, which are usual, lose no step."""

    def costs(handle: int, _number: int) -> int:
        return {PLAIN: 0, 1: MS // 10}.get(handle, 40 * MS)

    async with reporting(monkeypatch, costs) as (client, worker):
        await client.add(PLAIN, [1, 2, 3], max_tokens=NUM_TOKENS)
        usual = {"sampling_params": CONSTRAINED, "payer": "b"}
        await client.add(1, [1, 2, 3], max_tokens=NUM_TOKENS, **usual)

        live, handles = set[int](), itertools.count(2)
        while not client.got[PLAIN].end:
            live = {handle for handle in live if not client.got[handle].end}
            for handle in itertools.islice(handles, 4 - len(live)):
                live.add(handle)
                fields = {"sampling_params": CONSTRAINED, "payer": "a", "max_tokens": 1}
                await client.add(handle, [1, 2, 3], **fields)
            await asyncio.sleep(0)
        await client.ended(*client.got)
        _, mask_ns = beside_plain(worker)
        assert mask_ns < 0.35 * NUM_TOKENS * STEP_NS
        assert not await sat_out(client, 1)


async def test_payers_get_equal_turns_whatever_the_number_of_their_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many, one = range(2, 8), 1

    def costs(handle: int, _number: int) -> int:
        return 0 if handle == PLAIN else 4 * MS

    async with reporting(monkeypatch, costs) as (client, worker):
        await client.add(PLAIN, [1, 2, 3], max_tokens=NUM_TOKENS)
        for handle in (*many, one):
            fields = {"payer": "one" if handle == one else "many", "max_tokens": 200}
            await client.add(handle, [1, 2, 3], **fields)
        await client.ended(PLAIN, *many, one)
        steps, _ = beside_plain(worker)
        turns = [sum(handle in step for step in steps) for handle in (one, *many)]
        assert turns[0] > 0.5 * sum(turns[1:])


@pytest.mark.parametrize(
    ("num_plain", "mask_ns"),
    [
        pytest.param(0, 50 * MS, id="dear, where none else runs"),
        pytest.param(16, MS // 10, id="usual, beside others"),
    ],
)
async def test_no_step_is_sat_out_for_masks_that_harm_none(
    monkeypatch: pytest.MonkeyPatch, num_plain: int, mask_ns: int
) -> None:
    ruled = range(100, 164)

    def costs(handle: int, _number: int) -> int:
        return mask_ns if handle in ruled else 0

    async with reporting(monkeypatch, costs) as (client, worker):
        handles = (*range(num_plain), *ruled)
        for handle in handles:
            params = CONSTRAINED if handle in ruled else None
            await client.add(handle, [1, 2, 3], max_tokens=20, sampling_params=params)
        for got in await client.ended(*handles):
            got.assert_served()
        assert not any([await sat_out(client, handle) for handle in handles])
        assert worker.measured == set(ruled)
