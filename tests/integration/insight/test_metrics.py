"""What scheduler and worker show Prometheus agrees with what their clients got."""

import asyncio
import logging
import re
import time

import grpc
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from signalbox_rpc.metrics.registry import make_registry
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.service.reports import metrics, stats_log
from signalbox_scheduler.service.reports.stats_log import StatsLog
from tests.integration.insight.test_trace import Spans, spans
from tests.integration.stack import assert_idle, running_scheduler, running_worker, simulated
from tests.integration.stack import router as bare_router
from tests.integration.test_stack import ask, make_request, make_stack
from tests.waiting import eventually

__all__ = ["spans"]  # a fixture


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    """Returns the sum of a name's samples that have these labels."""
    found = [
        sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert found, f"nobody has {name}{labels}"
    return sum(found)


async def test_the_scheduler_counts_what_clients_got(spans: Spans) -> None:
    async with make_stack(num_gpu_blocks=9, num_cpu_blocks=8, step_ns=1_000_000) as stack:
        cluster = stack.scheduler.cluster
        registry = make_registry(lambda: metrics.samples(cluster))
        answers = [ask(stack.stub, make_request([i, 1, 2], max_tokens=40)) for i in range(4)]
        await asyncio.gather(*answers)
        await assert_idle(stack.scheduler)
        assert value(registry, "signalbox_generation_tokens_total") == 160
        assert value(registry, "signalbox_prompt_tokens_total") == 12
        assert value(registry, "signalbox_num_preemptions_total") > 0
        for name in ("queue", "prefill", "decode"):
            assert value(registry, f"signalbox_request_{name}_time_seconds_count") == 4
        for name in ("inference_time_seconds", "num_preemptions"):
            assert value(registry, f"signalbox_request_{name}_count") == 4
        total, parts = (
            value(registry, f"signalbox_request_{name}_time_seconds_sum")
            for name in ("inference", "prefill")
        )
        parts += value(registry, "signalbox_request_decode_time_seconds_sum")
        assert total == pytest.approx(parts, abs=4e-9 * 2)  # each is cut to nanoseconds
        assert value(registry, "signalbox_request_num_preemptions_sum") == value(
            registry, "signalbox_num_preemptions_total"
        )
        cache = {"block_size": "16", "num_gpu_blocks": "9", "enable_prefix_caching": "True"}
        cache |= {"kv_cache_size_tokens": "144", "kv_cache_max_concurrency": "0.03516"}
        assert value(registry, "signalbox_cache_config_info", **cache) == 1
        # Between 40 tokens there are 39 gaps: steps, and preemptions that took the place of one.
        gaps = value(registry, "signalbox_inter_token_latency_seconds_count")
        # A resume by swap is a step as well, and an overlapped step may hold an ended sequence.
        preemptions = value(registry, "signalbox_num_preemptions_total")
        assert 4 * 39 <= gaps <= 4 * 39 + 2 * preemptions + 4
        assert value(registry, "signalbox_kv_cache_usage_perc") == 0
        assert value(registry, "signalbox_num_requests_running", model_name="simulated") == 0
        assert value(registry, "signalbox_workers", state="serving") == 1
        text = generate_latest(registry).decode()
        named = set(re.findall(r'request_queue_time_seconds_bucket.*trace_id="(\w+)"', text))
        seen = {f"{span.context.trace_id:032x}" for span in spans.named("scheduler.request")}
        assert named and named <= seen


async def test_gauges_are_those_of_the_moment() -> None:
    async with make_stack(num_gpu_blocks=64, max_num_seqs=1, step_ns=20_000_000) as stack:
        cluster = stack.scheduler.cluster
        registry = make_registry(lambda: metrics.samples(cluster))
        calls = [stack.stub.Generate(make_request([i], max_tokens=1000)) for i in range(3)]
        await eventually(lambda: len(cluster.requests) == 3 and len(cluster.admission) == 2)
        assert value(registry, "signalbox_num_requests_running") == 1
        assert value(registry, "signalbox_num_requests_waiting") == 2
        by_reason = "signalbox_num_requests_waiting_by_reason"
        assert value(registry, by_reason, reason="capacity") == 2
        assert value(registry, by_reason, reason="deferred") == 0
        assert 0 < value(registry, "signalbox_kv_cache_usage_perc") < 1
        for call in calls:
            call.cancel()


async def test_a_worker_counts_its_steps_and_where_their_time_went() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(
            scheduler.address, simulated(step_ns=2_000_000, num_store_blocks=7)
        ) as running,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        async with bare_router(scheduler.address) as router:
            await router.add(1, [1, 2, 3], max_tokens=10)
            await router.ended(1)
        registry = make_registry(running.worker.samples)
        assert value(registry, "signalbox_worker_sampled_tokens_total") >= 10
        assert value(registry, "signalbox_worker_step_duration_seconds_count") >= 10
        forward = value(registry, "signalbox_worker_step_phase_seconds_total", phase="forward")
        assert forward >= 10 * 0.002
        assert forward <= value(registry, "signalbox_worker_step_duration_seconds_sum") * 1.001
        assert value(registry, "signalbox_worker_lease") == 1
        assert value(registry, "signalbox_worker_kv_store_open") == 1
        assert value(registry, "signalbox_worker_kv_store_blocks") == 0
        assert value(registry, "signalbox_worker_kv_store_capacity_bytes") == 7 * 16 * 8
        simulated_by = {"part": "model", "backend": "simulated", "last_resort": "false"}
        assert value(registry, "signalbox_worker_backend_info", **simulated_by) == 1


async def test_a_worker_of_stages_counts_where_the_time_went_in_each() -> None:
    config = {"stages": (1, 3), "step_ns": 4_000_000}
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(**config)) as running,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        async with bare_router(scheduler.address) as router:
            await router.add(1, [1, 2, 3], max_tokens=10)
            await router.ended(1)
        registry = make_registry(running.worker.samples)

    def spent(stage: int, phase: str) -> float:
        labels = {"stage": str(stage), "phase": phase}
        return value(registry, "signalbox_worker_stage_phase_seconds_total", **labels)

    num_steps = value(registry, "signalbox_worker_step_duration_seconds_count")
    assert spent(0, "compute") == pytest.approx(0.001 * num_steps)
    assert spent(1, "compute") == pytest.approx(0.003 * num_steps)
    assert spent(1, "wait") == pytest.approx(0.001 * num_steps)  # alone, each waits for stage 0
    assert spent(0, "wait") == spent(1, "collective") == 0
    for rank, stage in (("0", "1"), ("1", "0")):
        labels = {"rank": rank, "stage": stage, "tensor_parallel_rank": "0"}
        assert value(registry, "signalbox_worker_rank_info", **labels) == 1


async def test_what_a_scheduler_refuses_is_counted_by_reason() -> None:
    async with make_stack(num_gpu_blocks=4) as stack:
        cluster = stack.scheduler.cluster
        registry = make_registry(lambda: metrics.samples(cluster))
        name = "signalbox_admission_rejections_total"
        assert value(registry, name, reason="resource_exhausted") == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(stack.stub, make_request([1] * 100, max_tokens=500))
        reason = caught.value.code().name.lower()
        assert value(registry, name, reason=reason) == 1


async def test_a_line_says_when_the_load_of_a_worker_has_changed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, logger=stats_log.__name__)

    def lines() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == stats_log.__name__]

    async with make_stack() as stack:
        (loop,) = stack.scheduler.cluster.step_loops
        log, now = StatsLog(stack.scheduler.cluster), time.monotonic()
        log.write(now + 1)
        await ask(stack.stub, make_request([1, 2, 3], max_tokens=20))
        log.write(now + 11)
        assert not lines()  # it rests as before
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask(stack.stub, make_request([1, 2, 3], max_tokens=100)))
            await eventually(lambda: loop.scheduler.running)
            for later_s in (21, 31, 41):
                log.write(now + later_s)
            assert not asked.done()
        (line,) = lines()
        assert "running 1, swapped 0, waiting 0" in line
        log.write(now + 51)
        log.write(now + 61)
        assert len(lines()) == 2
        assert "running 0, swapped 0, waiting 0" in lines()[-1]
        rate = float(re.search(r"([\d.]+) generated tokens/s", lines()[-1])[1])  # type: ignore[index]
        assert 0 < rate <= 10
        await assert_idle(stack.scheduler)
