"""Throughput, latency, CPU and memory of a local stack under a closed loop.

    python -m benchmarks.serving MODEL [--concurrency 1 8 32] [--quantization none] ...

Starts `signalbox serve` itself, on this machine, and prints a Markdown table. CPU-seconds are those
of each process, per generated token; the load generator runs beside the stack and is not counted.
"Idle" is the share of the time in which a worker computes no step: clients always have a request
running, so it is what the stack between them and the workers costs.
"""

import argparse
import asyncio
import itertools
import time
from dataclasses import dataclass, replace

import psutil

from benchmarks.harness.closed_loop import Workload, closed_loop
from signalbox.bench.measurements import Measured, percentile_ms
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import LocalStack, running
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from signalbox_rpc.transport.channel import open_channel

HEADER = (
    "| concurrency | tokens/s | TTFT p50 / p99 ms | between tokens p50 / p99 ms"
    " | router ms CPU/token | scheduler ms CPU/token | worker ms CPU/token"
    " | both / worker | idle |\n|---|---|---|---|---|---|---|---|---|"
)


@dataclass(slots=True)
class Usage:
    """CPU time and memory of the stack's processes."""

    cpu_s: dict[str, float]
    rss_mib: dict[str, float]


def usage_of(stack: LocalStack) -> Usage:
    """Sums over the processes of one kind, such as "worker 0" and "worker 1"."""
    usage = Usage({}, {})
    for name, pid in stack.pids.items():
        kind, process = name.split()[0], psutil.Process(pid)
        times = process.cpu_times()
        usage.cpu_s[kind] = usage.cpu_s.get(kind, 0.0) + times.user + times.system
        usage.rss_mib[kind] = usage.rss_mib.get(kind, 0.0) + process.memory_info().rss / 2**20
    return usage


async def vocab_size(address: str) -> int:
    async with open_channel(address) as channel:
        answer = await pb_grpc.InferenceServiceStub(channel).GetModel(pb.GetModelRequest())
    return int(answer.vocab_size)


async def busy_s(stack: LocalStack) -> float:
    """Returns the time that workers have spent in steps, as they measure it themselves."""
    async with open_channel(stack.addresses.scheduler) as channel:
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        answer = await stub.GetStats(stats_pb2.GetStatsRequest())
    samples = [sample for worker in answer.workers for sample in worker.samples]
    phases = [one for one in samples if one.name == "step_phase_seconds"]
    return float(sum(one.counter for one in phases if one.labels["phase"] != "wait"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A closed loop and what the stack's processes did meanwhile."""

    concurrency: int
    measured: Measured
    cpu_ms_per_token: dict[str, float]
    idle: float
    """Share of the workers' time."""

    def row(self) -> str:
        first, between = self.measured.first_token_s, self.measured.between_tokens_s
        cpu_ms = self.cpu_ms_per_token
        tax = (cpu_ms["router"] + cpu_ms["scheduler"]) / cpu_ms["worker"]
        return (
            f"| {self.concurrency} | {self.measured.tokens_per_s:.1f}"
            f" | {percentile_ms(first, 50):.0f} / {percentile_ms(first, 99):.0f}"
            f" | {percentile_ms(between, 50):.1f} / {percentile_ms(between, 99):.1f}"
            f" | {cpu_ms['router']:.3f} | {cpu_ms['scheduler']:.3f} | {cpu_ms['worker']:.2f}"
            f" | {tax:.1%} | {self.idle:.1%} |"
        )


async def measure(
    stack: LocalStack, workload: Workload, *, concurrency: int, num_requests: int, num_workers: int
) -> Run:
    before, busy_before_s = usage_of(stack), await busy_s(stack)
    measured = await closed_loop(
        stack.addresses.router, workload, concurrency=concurrency, num_requests=num_requests
    )
    after, busy_after_s = usage_of(stack), await busy_s(stack)
    spent = {
        kind: (after.cpu_s[kind] - before.cpu_s[kind]) / measured.num_tokens * 1e3
        for kind in after.cpu_s
    }
    busy = (busy_after_s - busy_before_s) / (measured.duration_s * num_workers)
    return Run(concurrency=concurrency, measured=measured, cpu_ms_per_token=spent, idle=1 - busy)


async def run(options: argparse.Namespace) -> None:
    start = time.perf_counter()
    async with running(load(ServeSettings, _settings(options))) as stack:
        print(f"start to SERVING: {time.perf_counter() - start:.1f} s\n\n{HEADER}", flush=True)
        workload = Workload(
            prompt_tokens=options.prompt_tokens,
            max_tokens=options.max_tokens,
            vocab_size=await vocab_size(stack.addresses.router),
        )
        await closed_loop(
            stack.addresses.router, workload, concurrency=2, num_requests=4
        )  # warm-up
        seeds = itertools.count(1)  # prompts that are not in the prefix cache
        for concurrency in options.concurrency * options.repeats:
            run = await measure(
                stack,
                replace(workload, seed=next(seeds)),
                concurrency=concurrency,
                num_requests=max(concurrency, 4) * options.rounds,
                num_workers=options.workers,
            )
            print(run.row(), flush=True)
        memory = usage_of(stack).rss_mib
        print("\nresident MiB: " + ", ".join(f"{k} {v:.0f}" for k, v in memory.items()))


def _settings(options: argparse.Namespace) -> dict[str, object]:
    common: dict[str, object] = {"grpc_port": 0, "http": False, "log_level": "warning"}
    common |= {"workers": options.workers}
    if options.model is None:
        return common | {"simulate": True, "simulated_step_ms": options.simulated_step_ms}
    form = {"dtype": options.dtype, "quantization": options.quantization}
    return common | {"model": options.model, **form}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("model", nargs="?", help="without one the workers are simulated")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=2, help="requests of each client")
    parser.add_argument("--repeats", type=int, default=1, help="of the whole series")
    parser.add_argument("--simulated-step-ms", type=float, default=20.0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
