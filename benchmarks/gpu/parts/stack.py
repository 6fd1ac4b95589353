"""The whole stack, router, scheduler and worker, of a Llama-3-8B shape under `signalbox bench`.

1, 64 and 256 requests at a time, as token ids over gRPC, then some chats in words, which take the
tokenizer and the chat template that a model of config.json alone is given.
"""

import asyncio
import json
import sys
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.measures import Measure
from benchmarks.gpu.models import LLAMA_3_8B, write_model
from signalbox.settings.loading import load
from signalbox.settings.serve_settings import ServeSettings
from signalbox.stack.local_stack import LocalStack, running

_LOADS = {1: 8, 64: 256, 256: 768}
"""Numbers of requests by how many run at a time."""


def measure(bench: Bench) -> list[Measure]:
    return asyncio.run(_measure(bench))


async def _measure(bench: Bench) -> list[Measure]:
    settings: dict[str, object] = {
        "grpc_port": 0,
        "http": False,
        "log_level": "info",
        "model": str(write_model(bench, LLAMA_3_8B)),
        "load_format": "dummy",
        "device": bench.device.type,
        "max_num_seqs": bench.pick(256, 4),
        **bench.settings,
    }
    prompt, answer = bench.pick(512, 16), bench.pick(128, 8)
    sizes = [f"--prompt-tokens={prompt}", f"--max-tokens={answer}"]
    found = []
    async with running(load(ServeSettings, settings)) as stack:
        await _bench(stack, *sizes, "--concurrency=2", "--requests=2")
        for concurrency, requests in _LOADS.items() if not bench.tiny else ((1, 1), (4, 4)):
            counts = (f"--concurrency={concurrency}", f"--requests={requests}")
            figures = await _bench(stack, *sizes, *counts)
            found += _measures(f"{concurrency} at a time", figures)
        chats = ("--chat", "--concurrency=8", f"--requests={bench.pick(32, 2)}")
        found += _measures("8 chats at a time", await _bench(stack, *sizes, *chats))
    return found


async def _bench(stack: LocalStack, *flags: str) -> dict[str, Any]:
    """Runs `signalbox bench`; returns its figures. Raises RuntimeError if a request failed."""
    address = f"--router={stack.addresses.router}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "signalbox", "bench", address, "--json", *flags,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    print(output.decode(), flush=True)
    if process.returncode:
        raise RuntimeError(f"signalbox bench {' '.join(flags)} ended with {process.returncode}")
    figures: dict[str, Any] = json.loads(output)
    return figures


def _measures(title: str, figures: dict[str, Any]) -> list[Measure]:
    latencies = {
        "first token": figures["time_to_first_token_ms"],
        "between tokens": figures["inter_token_latency_ms"],
    }
    return [
        Measure(
            name=f"{title}: tokens", value=figures["output_tokens_per_s"], unit="tokens/s",
            note=f"{figures['completed']} requests in {figures['duration_s']:.1f} s",
        ),
        *(
            Measure(
                name=f"{title}: {name}, median", value=of["p50"], unit="ms",
                note=f"99 %: {of['p99']:,.1f} ms",
            )
            for name, of in latencies.items()
            if of["p50"] is not None
        ),
    ]  # fmt: skip
