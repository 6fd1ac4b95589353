"""Five times the load that fits: what is still served, and how fast the rest is turned away.

    python -m benchmarks.overload [--factor 5] [--seconds 60] [--workers 1]

Simulated workers, so that the services around them are what is measured. First a closed loop that
keeps every place and half of the queue taken says how much there is; then requests come at random
times, so many times as often as they can be served. Goodput counts tokens of whole answers alone.
"""

import argparse
import asyncio
import itertools
import random
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.harness.prompts import random_prompts
from benchmarks.memory.memory_pressure import SIMULATED_VOCAB_SIZE
from benchmarks.peers.signalbox_server import SignalboxServer
from signalbox.bench.measurements import percentile_ms
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.interceptors.status import retry_after_s
from signalbox_rpc.transport.channel import open_channel

PROMPT_TOKENS = 64
MAX_TOKENS = 64
PLACES = 32
"""Sequences in a step of one worker."""
QUEUE = 64
STEP_MS = 20


@dataclass(slots=True)
class Offered:
    """Outcomes of the requests of one run."""

    ended_at: list[float] = field(default_factory=list)
    """End of each complete answer, by time.perf_counter."""
    refused_s: list[float] = field(default_factory=list)
    """Seconds that each refusal with RetryInfo took."""
    other: Counter[str] = field(default_factory=Counter)
    """Every other ending; there should be none."""

    def goodput(self, start: float, stop: float) -> float:
        """Returns tokens a second of whole answers that ended in [start, stop)."""
        return MAX_TOKENS * sum(start <= at < stop for at in self.ended_at) / (stop - start)


async def ask(stub: pb_grpc.InferenceServiceStub, prompt: list[int], offered: Offered) -> None:
    """Sends one request and notes how it ended."""
    params = pb.SamplingParams(temperature=0, max_tokens=MAX_TOKENS, ignore_eos=True)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)
    start, num_tokens = time.perf_counter(), 0
    try:
        async for response in stub.Generate(request):
            num_tokens += sum(len(output.token_ids) for output in response.outputs)
    except grpc.aio.AioRpcError as error:
        is_refusal = error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not num_tokens
        if is_refusal and retry_after_s(error) is not None:
            offered.refused_s.append(time.perf_counter() - start)
        else:
            offered.other[f"{error.code().name} after {num_tokens} tokens"] += 1
        return
    if num_tokens == MAX_TOKENS:
        offered.ended_at.append(time.perf_counter())
    else:
        offered.other[f"{num_tokens} tokens"] += 1


async def saturate(
    stub: pb_grpc.InferenceServiceStub, *, concurrency: int, seconds: float
) -> tuple[float, Offered]:
    """Keeps so many requests going; returns goodput, without the first fifth, and what happened."""
    offered, prompts = (
        Offered(),
        random_prompts(vocab_size=SIMULATED_VOCAB_SIZE, num_tokens=PROMPT_TOKENS, seed=1),
    )
    start = time.perf_counter()

    async def client() -> None:
        while time.perf_counter() < start + seconds:
            await ask(stub, next(prompts), offered)

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return offered.goodput(start + seconds / 5, start + seconds), offered


async def overload(
    stub: pb_grpc.InferenceServiceStub, *, rate: float, seconds: float
) -> tuple[float, Offered]:
    """Sends `rate` requests a second, whatever comes back; returns the same."""
    offered, rng = Offered(), random.Random(2)
    prompts = random_prompts(vocab_size=SIMULATED_VOCAB_SIZE, num_tokens=PROMPT_TOKENS, seed=2)
    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for due in itertools.accumulate(iter(lambda: rng.expovariate(rate), None)):
            if due > seconds:
                break
            await asyncio.sleep(start + due - time.perf_counter())
            group.create_task(ask(stub, next(prompts), offered))
    return offered.goodput(start + seconds / 5, start + seconds), offered


@asynccontextmanager
async def server(*, num_workers: int) -> AsyncIterator[pb_grpc.InferenceServiceStub]:
    """Starts a stack of our own processes."""
    flags = (
        f"--workers={num_workers}",
        f"--max-num-seqs={PLACES}",
        f"--max-queued-requests={QUEUE * num_workers}",
        f"--simulated-step-ms={STEP_MS}",
    )
    folder = Path(tempfile.mkdtemp(prefix="signalbox-bench-"))
    running = SignalboxServer(None, log_folder=folder, extra_arguments=flags)
    await running.start()
    try:
        async with open_channel(f"127.0.0.1:{running.port}") as channel:
            yield pb_grpc.InferenceServiceStub(channel)
    finally:
        running.stop()


async def run(options: argparse.Namespace) -> None:
    async with server(num_workers=options.workers) as stub:
        concurrency = (PLACES + QUEUE // 2) * options.workers
        most, alone = await saturate(stub, concurrency=concurrency, seconds=options.seconds / 2)
        rate = options.factor * most / MAX_TOKENS
        good, offered = await overload(stub, rate=rate, seconds=options.seconds)
    print(
        "| run | requests/s | goodput tokens/s | refused | refusal p50 / p99 ms | other endings |\n"
        "|---|---|---|---|---|---|"
    )
    print(_row("saturated", most / MAX_TOKENS, most, alone))
    print(_row(f"{options.factor:g} times that", rate, good, offered))
    print(f"\nGoodput under overload: {good / most:.1%} of the saturated one.")


def _row(name: str, rate: float, goodput: float, offered: Offered) -> str:
    times = " / ".join(f"{percentile_ms(offered.refused_s, p):.1f}" for p in (50, 99))
    others = ", ".join(f"{reason}: {count}" for reason, count in offered.other.items()) or "none"
    cells = (f"{rate:.1f}", f"{goodput:.0f}", str(len(offered.refused_s)), times, others)
    return f"| {name} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overload")
    parser.add_argument("--factor", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=60.0, help="of overload")
    parser.add_argument("--workers", type=int, default=1)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
