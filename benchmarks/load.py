"""A closed loop: so many clients, each with one request after the other, through the public API."""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from rpc.client import open_channel


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What each request asks: random prompts of one length, greedy, the end of sequence ignored."""

    prompt_tokens: int = 128
    max_tokens: int = 128
    vocab_size: int
    seed: int = 0

    def requests(self) -> Iterator[pb.GenerateRequest]:
        rng = np.random.default_rng(self.seed)
        while True:
            ids = rng.integers(0, self.vocab_size, self.prompt_tokens).tolist()
            params = pb.SamplingParams(temperature=0, max_tokens=self.max_tokens, ignore_eos=True)
            yield pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids), sampling_params=params)


@dataclass(slots=True)
class Measured:
    """One run of a closed loop; times in seconds."""

    duration_s: float = 0.0
    num_tokens: int = 0
    first_token_s: list[float] = field(default_factory=list)
    between_tokens_s: list[float] = field(default_factory=list)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.duration_s


async def closed_loop(
    address: str, workload: Workload, *, concurrency: int, num_requests: int
) -> Measured:
    """Runs `num_requests` requests, `concurrency` at a time."""
    measured = Measured()
    requests = workload.requests()
    pending = iter(range(num_requests))
    async with open_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)

        async def client() -> None:
            for _ in pending:
                await _one(stub, next(requests), measured)

        start = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(concurrency)))
        measured.duration_s = time.perf_counter() - start
    return measured


async def _one(
    stub: pb_grpc.InferenceServiceStub, request: pb.GenerateRequest, measured: Measured
) -> None:
    last = start = time.perf_counter()
    num_tokens = 0
    async for response in stub.Generate(request):
        now = time.perf_counter()
        new_tokens = sum(len(output.token_ids) for output in response.outputs)
        if not new_tokens:
            continue
        if not num_tokens:
            measured.first_token_s.append(now - start)
        else:
            measured.between_tokens_s += [(now - last) / new_tokens] * new_tokens
        num_tokens += new_tokens
        last = now
    assert num_tokens == request.sampling_params.max_tokens, "a request ended early"
    measured.num_tokens += num_tokens


def percentile_ms(values_s: list[float], percentile: float) -> float:
    """Returns a percentile of times in seconds, in milliseconds."""
    return float(np.percentile(values_s, percentile)) * 1e3 if values_s else float("nan")
