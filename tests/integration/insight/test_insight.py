"""What a running scheduler tells of itself: one request's timeline, its counts, its whole state."""

import grpc
import pytest

from signalbox_protos.scheduler.v1 import explain_pb2, state_pb2, stats_pb2
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from tests.integration.stack import (
    Router,
    count,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.waiting import eventually

ADDRESS = "127.0.0.9"
"""Of a client; no answer names it."""


async def explain(client: Router, request_id: str) -> explain_pb2.ExplainResponse:
    request = explain_pb2.ExplainRequest(request_id=request_id)
    answer: explain_pb2.ExplainResponse = await client.stub.Explain(request)
    return answer


async def dump(
    client: Router, *, include_token_ids: bool = False
) -> list[state_pb2.DumpStateResponse]:
    request = state_pb2.DumpStateRequest(include_token_ids=include_token_ids)
    return [part async for part in client.stub.DumpState(request)]


def kinds(answer: explain_pb2.ExplainResponse) -> list[str]:
    names = [explain_pb2.EventKind.Name(event.kind) for event in answer.events]
    return [name.removeprefix("EVENT_KIND_") for name in names]


async def test_explain_tells_the_whole_way_of_requests_that_were_preempted() -> None:
    config = SchedulerConfig(port=0, preemption_mode=PreemptionMode.SWAP)
    make = simulated(block_size=8, num_gpu_blocks=12, num_cpu_blocks=64)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: bool(scheduler.cluster.step_loops))
        for handle in range(3):
            await client.add(handle, [handle] * 20, max_tokens=40)
        await client.ended(0, 1, 2)
        answers = [await explain(client, f"r{handle}") for handle in range(3)]
        [step_loop] = scheduler.cluster.step_loops
    assert sum(answer.num_preemptions for answer in answers) > 0
    for answer in answers:
        assert answer.state == explain_pb2.REQUEST_STATE_ENDED
        assert answer.worker == step_loop.worker_name
        assert answer.block_size == 8
        assert kinds(answer)[:3] == ["QUEUED", "SCHEDULED", "PREFILL"]
        assert kinds(answer)[-1] == "ENDED"
        assert answer.events[-1].detail == "LENGTH"
        assert kinds(answer).count("PREEMPTED") == kinds(answer).count("RESUMED")
        assert answer.events[-1].at_ns == answer.age_ns
        phases = answer.queued_ns + answer.prefill_ns + answer.decode_ns
        assert abs(phases - answer.age_ns) < 1000


async def test_the_beginning_of_an_id_explains_the_one_request_that_has_it() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(block_size=8, num_gpu_blocks=64)),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: bool(scheduler.cluster.step_loops))
        for handle in (1, 12, 123, 4567):
            await client.add(handle, [7] * 20, max_tokens=2)
        await client.ended(1, 12, 123, 4567)
        assert (await explain(client, "r45")).request_id == "r4567"
        assert (await explain(client, "r1")).request_id == "r1"  # in full
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await explain(client, "r")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert "4 requests begin with 'r'; give more" in (caught.value.details() or "")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await explain(client, "")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_explain_of_a_request_that_nobody_knows_is_not_found() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await explain(client, "nobody")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "'nobody'" in (caught.value.details() or "")


async def test_stats_count_steps_tokens_and_how_requests_ended() -> None:
    make = simulated(block_size=8, num_gpu_blocks=64)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        await client.add(9, [1, 2, 3], max_tokens=5)
        await client.ended(9)
        async with running_worker(scheduler.address, make):
            await eventually(lambda: bool(scheduler.cluster.step_loops))
            for handle in range(2):
                await client.add(handle, [7] * 20, max_tokens=5)
                await client.ended(handle)
            stats = await client.stub.GetStats(stats_pb2.GetStatsRequest())
            assert not stats.live_requests
    [worker] = stats.workers
    histograms = {one.name: one.histogram for one in worker.samples if one.HasField("histogram")}
    tokens, durations = histograms["iteration_tokens_total"], histograms["step_duration_seconds"]
    assert dict(stats.num_refused) == {"UNAVAILABLE": 1}
    assert dict(stats.requests.num_ended) == {"LENGTH": 2}
    assert worker.requests == stats.requests
    assert sum(worker.requests.time_to_first_token_ns.counts) == 2
    assert sum(tokens.counts) == sum(durations.counts) > 0
    assert len(tokens.counts) == len(tokens.bounds) + 1
    hits = count(worker.samples, "prefix_cache_hits")
    assert hits == 16  # the second request finds two blocks of the first
    assert 24 <= count(worker.samples, "prefill_tokens") <= tokens.sum
    assert stats.uptime_ns / 1e9 > durations.sum * durations.unit > 0


async def test_dump_shows_queues_tables_and_steps_in_flight_and_no_tokens_unless_asked() -> None:
    config = SchedulerConfig(port=0)
    make = simulated(block_size=8, num_gpu_blocks=64, max_num_seqs=1, step_ns=20_000_000)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: bool(scheduler.cluster.step_loops))
        await client.add(0, [5] * 20, max_tokens=200, payer=ADDRESS)
        await client.add(1, [6] * 20, max_tokens=200, payer=ADDRESS)
        await eventually(
            lambda: len(client.got[0].tokens.get(0, [])) >= 10
        )  # what it waits for lasts
        parts = await dump(client)
        with_tokens = await dump(client, include_token_ids=True)
        assert ADDRESS not in f"{with_tokens} {await explain(client, 'r1')}"
    cluster, worker, running, waiting = parts
    assert cluster.cluster.waiting_request_ids == ["r1"]
    assert worker.worker.running_request_ids == ["r0"]
    assert 1 <= len(worker.worker.inflight) <= 2
    [sequence] = running.request.sequences
    [step, *_] = worker.worker.inflight
    assert step.seq_ids == [sequence.seq_id]
    assert sequence.num_computed_tokens + sequence.num_inflight_tokens >= 20
    assert worker.worker.gpu.num_owners.keys() == set(sequence.block_table)
    assert count(worker.worker.samples, "num_requests_running") == 1
    assert waiting.request.explanation.waits[0].reason == explain_pb2.WAIT_REASON_SEQUENCES
    assert not running.request.prompt_token_ids
    assert not sequence.output_token_ids
    assert with_tokens[2].request.prompt_token_ids == [5] * 20
    assert len(with_tokens[2].request.sequences[0].output_token_ids) >= 1
    pool = worker.worker.gpu
    assert pool.num_free + len(pool.num_owners) == pool.num_blocks == 64


async def test_stats_list_the_oldest_live_requests_if_they_are_asked_for() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(block_size=8, num_gpu_blocks=500)),
        router(scheduler.address) as client,
    ):
        cluster = scheduler.cluster
        await eventually(lambda: bool(cluster.step_loops))
        for handle in (1, 2):
            await client.add(handle, [7] * handle, max_tokens=3_900)
        await eventually(lambda: len(cluster.requests.live_groups) == 2)
        request = stats_pb2.GetStatsRequest(max_live_requests=1)
        listed = await client.stub.GetStats(request)
        for handle in (1, 2):
            await client.abort(handle)
        await eventually(lambda: not cluster.requests.live_groups)
        after = await client.stub.GetStats(stats_pb2.GetStatsRequest(max_live_requests=5))
    [oldest] = listed.live_requests
    assert (oldest.num_prompt_tokens, oldest.max_tokens) == (1, 3_900)
    assert oldest.age_ns >= oldest.waited_ns
    assert listed.model_name == after.model_name != ""
    assert not after.live_requests
