"""Beam search through the stack: returned tokens a second, beside as many drawn sequences.

    python -m benchmarks.beam MODEL [--widths 1 2 4 8] [--concurrency 4] [--quantization none] ...

Starts `signalbox serve` itself. A search of width W returns all W hypotheses; the plain requests
beside it draw n = W sequences of the same prompts, so that the ratio is the price of searching.
"""

import argparse
import asyncio
from collections.abc import AsyncIterator, Iterable
from functools import partial
from itertools import islice

from benchmarks.harness.closed_loop import Stream, Workload, drive, generate
from benchmarks.serving import vocab_size
from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc as pb_grpc
from rpc.transport.channel import open_channel
from signalbox.bench.measurements import Measured
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import running

HEADER = "| width | searched tokens/s | drawn tokens/s | ratio |\n|---|---|---|---|"


async def measure(
    address: str, workload: Workload, *, width: int, concurrency: int, num_requests: int
) -> Measured:
    """Runs searches of one width against a router, `concurrency` at a time."""
    async with open_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        stream = partial(generate, stub, beam_width=width)
        return await _drive(
            stream, workload, width=width, concurrency=concurrency, num_requests=num_requests
        )


async def measure_drawn(
    address: str, workload: Workload, *, width: int, concurrency: int, num_requests: int
) -> Measured:
    """Runs requests of as many sequences, drawn at temperature 1."""
    async with open_channel(address) as channel:
        stub = pb_grpc.InferenceServiceStub(channel)
        stream = partial(_draw, stub, num_sequences=width)
        return await _drive(
            stream, workload, width=width, concurrency=concurrency, num_requests=num_requests
        )


async def _drive(
    stream: Stream, workload: Workload, *, width: int, concurrency: int, num_requests: int
) -> Measured:
    prompts = list(islice(workload.prompts(), num_requests))
    return await drive(
        stream,
        prompts,
        max_tokens=workload.max_tokens,
        concurrency=concurrency,
        num_sequences=width,
    )


async def _draw(
    stub: pb_grpc.InferenceServiceStub,
    token_ids: Iterable[int],
    *,
    max_tokens: int,
    num_sequences: int,
) -> AsyncIterator[int]:
    params = pb.SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=num_sequences, seed=1)
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=token_ids), sampling_params=params)
    async for response in stub.Generate(request):
        yield sum(len(output.token_ids) for output in response.outputs)


async def run(options: argparse.Namespace) -> None:
    settings = {
        "grpc_port": 0,
        "model": options.model,
        "dtype": options.dtype,
        "quantization": options.quantization,
        "log_level": "warning",
    }
    async with running(load(ServeSettings, settings)) as stack:
        workload = Workload(
            prompt_tokens=options.prompt_tokens,
            max_tokens=options.max_tokens,
            vocab_size=await vocab_size(stack.addresses.router),
        )
        print(HEADER, flush=True)
        for width in options.widths:
            loop = {
                "width": width,
                "concurrency": options.concurrency,
                "num_requests": options.concurrency * options.rounds,
            }
            await measure(stack.addresses.router, workload, **loop | {"num_requests": 1})  # warm-up
            searched = (await measure(stack.addresses.router, workload, **loop)).tokens_per_s
            drawn = (await measure_drawn(stack.addresses.router, workload, **loop)).tokens_per_s
            print(
                f"| {width} | {searched:.1f} | {drawn:.1f} | {searched / drawn:.2f} |", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2, help="requests of each client")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
