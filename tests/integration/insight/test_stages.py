"""Two real pipeline stages, as an operator sees them: counts, explanation, spans and metrics."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from gpu_worker.config import ParallelConfig
from protos.scheduler.v1 import explain_pb2, stats_pb2
from rpc.metrics.registry import make_registry
from scheduler_svc.config import SchedulerConfig
from signalbox.inspect import explain as explain_command
from signalbox.inspect.load_rates import measure
from signalbox.inspect.top_view import render
from tests.gpu_worker.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import make_llama
from tests.integration.stack import router, running_scheduler, running_worker
from tests.waiting import eventually

pytestmark = pytest.mark.system


def shown(view: object) -> str:
    text = io.StringIO()
    Console(file=text, width=100).print(view)
    return text.getvalue()


async def test_stages_are_seen_in_top_explain_and_metrics(tmp_path: Path) -> None:
    make_llama(tmp_path)
    start = with_sizes(make_start(tmp_path, ParallelConfig()), 1, 2)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, lambda: load_threads(start)) as running,
        router(scheduler.address) as client,
    ):
        await eventually(lambda: bool(scheduler.cluster.step_loops))
        before = await client.stub.GetStats(stats_pb2.GetStatsRequest())
        await client.add(1, [3, 4, 5], max_tokens=20)
        await client.ended(1)
        after = await client.stub.GetStats(stats_pb2.GetStatsRequest())
        explained = await client.stub.Explain(explain_pb2.ExplainRequest(request_id="r1"))
        registry = make_registry(running.worker.read_metrics)
    [worker] = measure(before, after).workers
    first, last = worker.stages
    assert [one.rank for one in first.ranks + last.ranks] == [1, 0]
    assert (first.first_layer, last.first_layer) == (0, first.num_layers)
    for stage in (first, last):
        assert stage.busy is not None
        assert 0 < stage.busy < 1  # a sequence alone is in one stage at a time
    assert last.waiting is not None
    assert last.waiting > 0
    assert first.boundary_bytes is not None
    assert first.boundary_bytes > 0
    host = first.ranks[0].host
    assert host in shown(render(measure(before, after), "scheduler"))
    assert len(explained.stages.stages) == 2
    assert 20 <= explained.stages.num_steps <= after.workers[0].num_steps
    assert "the stages of its worker" in shown(explain_command.render(explained))
    compute = registry.get_sample_value(
        "signalbox_worker_stage_phase_seconds_total",
        {"model_name": after.model_name, "stage": "0", "phase": "compute"},
    )
    assert compute is not None
    assert compute * 1e9 == pytest.approx(after.workers[0].stages.stages[0].forward_ns)
