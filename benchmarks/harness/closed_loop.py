"""A closed loop: so many clients, each with one request after the other, against any server.

A server is a `Stream`: a call that sends one prompt of token ids and yields how many tokens each
message of the answer brings. benchmarks/peers has one for us and one for each peer.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from benchmarks.harness.prompts import random_prompts
from signalbox.bench.measurements import Measured, observe
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel


class Stream(Protocol):
    """Greedy, the end of sequence ignored: exactly `max_tokens` come."""

    def __call__(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]: ...


class WrongTokenCount(RuntimeError):
    """A server has given more or fewer tokens than it was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Content of requests: random prompts of one length, greedy, the end of sequence ignored."""

    prompt_tokens: int = 128
    max_tokens: int = 128
    vocab_size: int
    seed: int = 0

    def prompts(self) -> Iterator[list[int]]:
        return random_prompts(
            vocab_size=self.vocab_size, num_tokens=self.prompt_tokens, seed=self.seed
        )


async def drive(
    stream: Stream,
    prompts: Sequence[list[int]],
    *,
    max_tokens: int,
    concurrency: int,
    num_sequences: int = 1,
) -> Measured:
    """Sends every prompt once, `concurrency` at a time; each is to bring `num_sequences` answers.

    Raises WrongTokenCount.
    """
    measured = Measured()
    pending = iter(prompts)

    async def client() -> None:
        for token_ids in pending:
            num_tokens = await observe(stream(token_ids, max_tokens=max_tokens), measured)
            if num_tokens != max_tokens * num_sequences:
                raise WrongTokenCount(
                    f"{num_tokens} tokens came where {max_tokens * num_sequences} were asked for"
                )

    start = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    measured.duration_s = time.perf_counter() - start
    return measured


async def closed_loop(
    address: str, workload: Workload, *, concurrency: int, num_requests: int
) -> Measured:
    """Runs `num_requests` requests against our public gRPC API, `concurrency` at a time."""
    prompts = list(itertools.islice(workload.prompts(), num_requests))
    async with open_channel(address) as channel:
        stream = partial(generate, pb_grpc.InferenceServiceStub(channel))
        return await drive(stream, prompts, max_tokens=workload.max_tokens, concurrency=concurrency)


async def generate(
    stub: pb_grpc.InferenceServiceStub,
    token_ids: Iterable[int],
    *,
    max_tokens: int,
    beam_width: int = 1,
    read_usage: Callable[[pb.Usage], None] = lambda _: None,
) -> AsyncIterator[int]:
    """A `Stream` over our public gRPC API, bound to a stub; of `beam_width` hypotheses, if any.

    `read_usage` gets what the answer says of the request at its end.
    """
    params = pb.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    if beam_width > 1:
        params.n = beam_width
        params.beam_search.width = beam_width
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=token_ids), sampling_params=params)
    async for response in stub.Generate(request):
        if response.HasField("usage"):
            read_usage(response.usage)
        yield sum(len(output.token_ids) for output in response.outputs)
