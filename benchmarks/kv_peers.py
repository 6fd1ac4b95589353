"""The first token after a prefix that another worker has: fetched from there, and computed.

    python -m benchmarks.kv_peers [MODEL] [--tokens 512 1024 2048] [--rounds 5]
        [--tensor-parallel-size 1] [--pipeline-parallel-size 1]

Starts `signalbox serve` with two workers, each of which runs one request at a time; each of their
ranks has one thread.
In a round one worker answers a prompt and is then kept busy by a stream, so that the other one
answers the same prompt, of which it has nothing, and after that one that no worker has seen.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, TypeAlias

import grpc

from benchmarks.harness.prompts import random_prompts
from benchmarks.serving import vocab_size
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import running
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1 import explain_pb2, scheduler_pb2_grpc
from signalbox_rpc.transport.channel import open_channel

_MODEL = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
Call: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"
HEADER = (
    "| tokens | computed ms | fetched ms | of them fetched | MB | fetch ms |"
    "\n|---|---|---|---|---|---|"
)


class First(NamedTuple):
    """A first token, and what had been fetched for it."""

    seconds: float
    worker: str
    num_cached_tokens: int
    num_bytes: int
    fetch_s: float


@dataclass(slots=True)
class Served:
    """A stack of two workers, and calls of it."""

    inference: pb_grpc.InferenceServiceStub
    scheduler: scheduler_pb2_grpc.SchedulerServiceStub
    num_requests: int = 0

    async def first(self, prompt: Sequence[int]) -> First:
        """Asks for one token."""
        start = time.perf_counter()
        name, call = await self._begin(prompt, max_tokens=1)
        seconds = time.perf_counter() - start
        await _read(call)
        answer = await self._explain(name)
        fetches = [one for one in answer.events if one.kind == explain_pb2.EVENT_KIND_FETCHED]
        return First(
            seconds,
            answer.worker,
            answer.num_cached_tokens,
            sum(fetch.num_bytes for fetch in fetches),
            sum(fetch.duration_ns for fetch in fetches) / 1e9,
        )

    @contextlib.asynccontextmanager
    async def busy(self, worker: str, prompt: Sequence[int]) -> AsyncIterator[None]:
        """Keeps one worker busy with a stream, as long as the model's window leaves tokens."""
        name, call = await self._begin(prompt)
        if (await self._explain(name)).worker != worker:
            other = call
            _, call = await self._begin(prompt)
            other.cancel()
        reading = asyncio.create_task(_read(call))
        try:
            yield
        finally:
            call.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _begin(
        self, prompt: Sequence[int], *, max_tokens: int | None = None
    ) -> tuple[str, Call]:
        """Returns the id of a request and its stream, of which the first token has been read."""
        self.num_requests += 1
        request = pb.GenerateRequest(
            request_id=f"{self.num_requests}",
            token_ids=pb.TokenIds(ids=prompt),
            sampling_params=pb.SamplingParams(
                temperature=0, max_tokens=max_tokens, ignore_eos=True
            ),
        )
        call = self.inference.Generate(request)
        async for response in call:
            if any(output.token_ids for output in response.outputs):
                break
        return request.request_id, call

    async def _explain(self, name: str) -> explain_pb2.ExplainResponse:
        answer: explain_pb2.ExplainResponse = await self.scheduler.Explain(
            explain_pb2.ExplainRequest(request_id=name)
        )
        return answer


async def _read(call: Call) -> None:
    """Reads a stream to its end."""
    async for _ in call:
        pass


async def measure(served: Served, prompts: Iterator[list[int]], *, rounds: int) -> str:
    """Returns a row of the table."""
    fetched, computed = list[First](), list[First]()
    for _ in range(rounds):
        prompt = next(prompts)
        owner = (await served.first(prompt)).worker
        async with served.busy(owner, prompt[:16]):
            fetched.append(await served.first(prompt))
            computed.append(await served.first(next(prompts)))
    assert all(one.worker == other.worker for one, other in zip(fetched, computed, strict=True))
    cells = (
        len(prompt),
        f"{1e3 * median(one.seconds for one in computed):.0f}",
        f"{1e3 * median(one.seconds for one in fetched):.0f}",
        f"{median(one.num_cached_tokens for one in fetched):.0f}",
        f"{median(one.num_bytes for one in fetched) / 1e6:.1f}",
        f"{1e3 * median(one.fetch_s for one in fetched):.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


async def rows(
    model: str, *, tokens: Sequence[int], rounds: int, **settings: object
) -> AsyncIterator[str]:
    """Yields a row for each length. Args: settings: of `signalbox serve`."""
    settings = {
        "grpc_port": 0,
        "http": False,
        "log_level": "warning",
        "model": model,
        "workers": 2,
        "num_threads": 1,
        "max_num_seqs": 1,
        "swap_space": 1,
        **settings,
    }
    async with (
        running(load(ServeSettings, settings)) as stack,
        open_channel(stack.addresses.router) as router,
        open_channel(stack.addresses.scheduler) as scheduler,
    ):
        served = Served(
            pb_grpc.InferenceServiceStub(router), scheduler_pb2_grpc.SchedulerServiceStub(scheduler)
        )
        size = await vocab_size(stack.addresses.router)
        warm = random_prompts(vocab_size=size, num_tokens=64, seed=0)
        await measure(served, warm, rounds=1)
        for num_tokens in tokens:
            prompts = random_prompts(vocab_size=size, num_tokens=num_tokens, seed=num_tokens)
            yield await measure(served, prompts, rounds=rounds)


async def run(options: argparse.Namespace) -> None:
    print(HEADER)
    async for row in rows(**vars(options)):
        print(row, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?", default=_MODEL)
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tensor-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-parallel-size", type=int, default=1)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
