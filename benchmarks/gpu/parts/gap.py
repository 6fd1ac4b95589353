"""The idle gap between steps with everything between services: a local stack, over gRPC.

The share of the time in which the worker is in no step while 64 clients always wait for tokens; the
worker counts its own time, so what is left is scheduling, messages and waking up.
"""

import asyncio

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.models import LLAMA_3_8B, write_model
from benchmarks.harness.closed_loop import Workload, closed_loop
from benchmarks.serving import measure as measure_run
from benchmarks.serving import vocab_size
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import running


def measure(bench: Bench) -> list[Measure]:
    return asyncio.run(_measure(bench))


async def _measure(bench: Bench) -> list[Measure]:
    concurrency = bench.pick(64, 4)
    settings: dict[str, object] = {
        "grpc_port": 0,
        "http": False,
        "log_level": "warning",
        "model": str(write_model(bench, LLAMA_3_8B)),
        "load_format": "dummy",
        "device": bench.device.type,
        "max_num_seqs": concurrency,
        **bench.settings,
    }
    async with running(load(ServeSettings, settings)) as stack:
        workload = Workload(
            prompt_tokens=bench.pick(512, 16),
            max_tokens=bench.pick(512, 16),
            vocab_size=await vocab_size(stack.addresses.router),
        )
        await closed_loop(stack.addresses.router, workload, concurrency=2, num_requests=2)
        run = await measure_run(
            stack, workload, concurrency=concurrency, num_requests=concurrency, num_workers=1
        )
    return [
        Measure(
            name=f"idle between steps, {concurrency} sequences",
            value=run.idle,
            unit="of the time",
            aim=0.03,
            is_least=False,
        ),
        Measure(
            name=f"through the stack, {concurrency} clients",
            value=run.measured.tokens_per_s,
            unit="tokens/s",
        ),
    ]
