"""Measures the loss when there is KV cache for half of the requests that run.

    python -m benchmarks.memory.memory_pressure MODEL [--peers DIR] [--gpu-blocks 256] ...

The same load with room for all, and with `--gpu-blocks` blocks of 16 tokens (default: half of what
it needs) under each preemption mode; with --peers vLLM too, with room for all and with as many
tokens of KV. Prompts are random, so that nothing is shared. Prints a Markdown table.
"""

import argparse
import asyncio
from itertools import islice

from benchmarks.comparison.turns import (
    BLOCK_SIZE,
    VLLM_BLOCK_SIZE,
    Servers,
    in_turns,
    parser,
    table,
)
from benchmarks.harness.closed_loop import drive
from benchmarks.harness.prompts import random_prompts
from benchmarks.peers.process import ServerProcess, finding_nothing
from signalbox.bench.measurements import Measured

MODES = ("swap", "recompute", "auto")
VOCAB_SIZE = 32_000
SIMULATED_VOCAB_SIZE = 512


async def measure(
    server: ServerProcess,
    *,
    concurrency: int,
    num_requests: int,
    prompt_tokens: int,
    max_tokens: int,
    vocab_size: int = VOCAB_SIZE,
    seed: int = 0,
) -> Measured:
    """Puts the load to a server that is ready, after a small one that warms it up.

    Raises FoundInCache.
    """
    prompts = random_prompts(vocab_size=vocab_size, num_tokens=prompt_tokens, seed=seed)
    await drive(server.stream, list(islice(prompts, 2)), max_tokens=8, concurrency=2)
    with finding_nothing(server):
        return await drive(
            server.stream,
            list(islice(prompts, num_requests)),
            max_tokens=max_tokens,
            concurrency=concurrency,
        )


def participants(
    options: argparse.Namespace, *, num_blocks: int, enough: int
) -> list[ServerProcess]:
    servers = Servers(options)
    few = ("--num-gpu-blocks-override", str(num_blocks))
    kv_blocks = str(num_blocks * BLOCK_SIZE // VLLM_BLOCK_SIZE)
    many = ("--num-gpu-blocks-override", str(enough))
    vllm_many = str(enough * BLOCK_SIZE // VLLM_BLOCK_SIZE)
    longest = str(num_blocks * BLOCK_SIZE // 2)  # vLLM refuses one that its KV cannot hold
    return [
        servers.ours("room for all", *many),
        *(servers.ours(mode, *few, "--preemption-mode", mode) for mode in MODES),
        *servers.vllm("room for all", "--num-gpu-blocks-override", vllm_many),
        *servers.vllm(
            "same KV", "--num-gpu-blocks-override", kv_blocks, "--max-model-len", longest
        ),
    ]


async def run(options: argparse.Namespace) -> None:
    prompt_tokens = max(4, options.prompt_tokens // options.shrink)
    max_tokens = max(4, options.max_tokens // options.shrink)
    each = -(-(prompt_tokens + max_tokens) // BLOCK_SIZE)
    needed = options.concurrency * each
    num_blocks = options.gpu_blocks or max(needed // 2, each)
    print(f"{num_blocks} blocks of {BLOCK_SIZE} tokens where {needed} are needed\n", flush=True)

    async def turn(server: ServerProcess, round_number: int) -> Measured:
        return await measure(
            server,
            concurrency=options.concurrency,
            num_requests=options.requests,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            vocab_size=VOCAB_SIZE if options.model else SIMULATED_VOCAB_SIZE,
            seed=round_number,
        )

    servers = participants(options, num_blocks=num_blocks, enough=2 * needed)
    print(table("blocks", await in_turns(servers, turn, rounds=options.rounds)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--gpu-blocks", type=int, help="of 16 tokens (default: half of the need)")
    options.add_argument("--concurrency", type=int, default=32)
    options.add_argument("--requests", type=int, default=64)
    options.add_argument("--prompt-tokens", type=int, default=128)
    options.add_argument("--max-tokens", type=int, default=128)
    asyncio.run(run(options.parse_args()))


if __name__ == "__main__":
    main()
