"""Measures the load that one core of scheduler carries, with simulated workers and `Connect`.

    python -m benchmarks.scheduler_core [--workers 1 2 4 8]

Each worker takes 20 ms a step and 64 sequences, so the ideal is 3,200 tokens a second for each. The
table gives throughput, its share of the ideal, and the scheduler's CPU for each token.
"""

import argparse
import asyncio
import itertools
import time
from dataclasses import dataclass, field

import psutil

from signalbox.stack.processes.child_processes import Child, start, watch
from signalbox_contract.columns import unpack_int32
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1 import stats_pb2
from signalbox_rpc.transport.channel import open_channel

PORT = 50152
STEP_MS = 20.0
SEQUENCES = 64
MAX_TOKENS = 256


@dataclass(slots=True)
class Driver:
    """Keeps so many requests running on one Connect stream, and counts the tokens."""

    num_running: int
    num_tokens: int = 0
    handles: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))

    async def run(self) -> None:
        async with open_channel(f"127.0.0.1:{PORT}") as channel:
            call = pb_grpc.SchedulerServiceStub(channel).Connect()
            for _ in range(self.num_running):
                await call.write(self._request())
            async for message in call:
                outputs = message.updates
                self.num_tokens += len(unpack_int32(outputs.token_ids))
                for ended in outputs.finished_requests:
                    assert not ended.code, ended.message
                    await call.write(self._request())

    def _request(self) -> pb.ConnectRequest:
        handle = next(self.handles)
        request = pb.Request(
            handle=handle,
            request_id=f"r{handle}",
            prompt_token_ids=[handle % 256] * 32,
            max_tokens=MAX_TOKENS,
            num_sequences=1,
        )
        request.sampling_params.top_p = 1.0
        return pb.ConnectRequest(add_request=request)


async def start_services(num_workers: int) -> list[Child]:
    scheduler = start("scheduler", ["scheduler", "--port", str(PORT)])
    worker = ["worker", "--simulate", "--scheduler", f"127.0.0.1:{PORT}"]
    worker += ["--max-num-seqs", str(SEQUENCES), "--simulated-step-ms", str(STEP_MS)]
    workers = [start(f"worker {i}", worker) for i in range(num_workers)]
    return [await watch(one) for one in (scheduler, *workers)]


async def until_joined(num_workers: int) -> None:
    async with open_channel(f"127.0.0.1:{PORT}") as channel:
        stub = pb_grpc.SchedulerServiceStub(channel)
        while True:
            stats = await stub.GetStats(stats_pb2.GetStatsRequest(), wait_for_ready=True)
            if len(stats.workers) == num_workers:
                return
            await asyncio.sleep(0.1)


def cpu_s(child: Child) -> float:
    times = psutil.Process(child.pid).cpu_times()
    return float(times.user + times.system)


async def measure(num_workers: int, *, seconds: float) -> str:
    children = await start_services(num_workers)
    try:
        await until_joined(num_workers)
        driver = Driver(num_running=num_workers * SEQUENCES)
        driving = asyncio.create_task(driver.run())
        await asyncio.sleep(3)  # prompts are computed, and every step is full
        tokens, cpu, start = driver.num_tokens, cpu_s(children[0]), time.perf_counter()
        await asyncio.sleep(seconds)
        elapsed = time.perf_counter() - start
        tokens, cpu = driver.num_tokens - tokens, cpu_s(children[0]) - cpu
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
    finally:
        await asyncio.gather(*(child.end(within_s=5) for child in reversed(children)))
    ideal = num_workers * SEQUENCES * 1e3 / STEP_MS
    rate = tokens / elapsed
    return (
        f"| {num_workers} | {rate:,.0f} | {rate / ideal:.1%} | {cpu / tokens * 1e6:.1f}"
        f" | {cpu / elapsed:.0%} |"
    )


async def run(options: argparse.Namespace) -> None:
    print("| workers | tokens/s | of the ideal | scheduler µs CPU/token | of its core |")
    print("|---|---|---|---|---|")
    for num_workers in options.workers:
        print(await measure(num_workers, seconds=options.seconds), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=10.0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
