"""Measures the gain of sharing prefixes, and of keeping those on the CPU that do not fit the GPU.

    python -m benchmarks.memory.shared_prefix MODEL [--peers DIR] ...

The first table: 64 requests that begin with the same 1,024 tokens, with and without the prefix
cache; with --peers vLLM too. The second: eight conversations of 1,024 tokens take turns, where the
GPU has room for four of them, with and without the second tier. Prints Markdown tables.
"""

import argparse
import asyncio
from itertools import islice

from benchmarks.comparison.turns import BLOCK_SIZE, Servers, in_turns, parser, table
from benchmarks.harness.closed_loop import drive
from benchmarks.memory.memory_pressure import SIMULATED_VOCAB_SIZE, VOCAB_SIZE
from benchmarks.peers.process import ServerProcess
from signalbox.bench.measurements import Measured
from signalbox.bench.workload import random_prompts

NUM_CONVERSATIONS = 8
NUM_TURNS = 3  # each conversation's; the first finds nothing


async def measure(
    server: ServerProcess,
    *,
    shared_tokens: int,
    own_tokens: int,
    max_tokens: int,
    num_requests: int,
    concurrency: int,
    vocab_size: int = VOCAB_SIZE,
    seed: int = 0,
) -> Measured:
    """Puts requests with a common prefix to a server that is ready and has not seen it."""
    prefixes = random_prompts(vocab_size=vocab_size, num_tokens=shared_tokens, seed=2 * seed)
    own = random_prompts(vocab_size=vocab_size, num_tokens=own_tokens, seed=2 * seed + 1)
    await drive(server.stream, list(islice(own, 2)), max_tokens=8, concurrency=2)
    prefix = next(prefixes)
    prompts = [prefix + rest for rest in islice(own, num_requests)]
    return await drive(server.stream, prompts, max_tokens=max_tokens, concurrency=concurrency)


async def measure_turns(
    server: ServerProcess,
    *,
    shared_tokens: int,
    own_tokens: int,
    max_tokens: int,
    vocab_size: int = VOCAB_SIZE,
    seed: int = 0,
) -> Measured:
    """Lets conversations take turns; the first turn of each is not counted."""
    random = random_prompts(vocab_size=vocab_size, num_tokens=shared_tokens, seed=2 * seed)
    own = random_prompts(vocab_size=vocab_size, num_tokens=own_tokens, seed=2 * seed + 1)
    prefixes = list(islice(random, NUM_CONVERSATIONS))
    measured = Measured()
    for turn in range(NUM_TURNS):
        prompts = [prefix + next(own) for prefix in prefixes]
        done = await drive(server.stream, prompts, max_tokens=max_tokens, concurrency=1)
        if turn:
            measured.duration_s += done.duration_s
            measured.num_tokens += done.num_tokens
            measured.first_token_s += done.first_token_s
            measured.between_tokens_s += done.between_tokens_s
    return measured


async def run(options: argparse.Namespace) -> None:
    lengths = {
        "shared_tokens": max(BLOCK_SIZE, options.shared_tokens // options.shrink),
        "own_tokens": max(4, options.own_tokens // options.shrink),
        "max_tokens": max(4, options.max_tokens // options.shrink),
        "vocab_size": VOCAB_SIZE if options.model else SIMULATED_VOCAB_SIZE,
    }

    async def together(server: ServerProcess, round_number: int) -> Measured:
        return await measure(
            server,
            num_requests=options.requests,
            concurrency=options.concurrency,
            seed=round_number,
            **lengths,
        )

    async def in_order(server: ServerProcess, round_number: int) -> Measured:
        return await measure_turns(server, seed=round_number, **lengths)

    servers = Servers(options)
    sharing = [
        servers.ours("not shared", "--no-prefix-caching"),
        servers.ours("shared"),
        *servers.vllm("not shared", "--no-enable-prefix-caching"),
        *servers.vllm("shared", "--enable-prefix-caching"),
    ]
    print(table("prefix", await in_turns(sharing, together, rounds=options.rounds)), flush=True)
    room = (lengths["shared_tokens"] // BLOCK_SIZE + 2) * NUM_CONVERSATIONS // 2
    few = ("--num-gpu-blocks-override", str(room + 8))
    tiers = [
        servers.ours("GPU alone", *few, "--no-cpu-prefix-cache"),
        servers.ours("GPU and CPU", *few),
    ]
    print("\n" + table("kept on", await in_turns(tiers, in_order, rounds=options.rounds)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--shared-tokens", type=int, default=1024)
    options.add_argument("--own-tokens", type=int, default=32)
    options.add_argument("--max-tokens", type=int, default=32)
    options.add_argument("--requests", type=int, default=64)
    options.add_argument("--concurrency", type=int, default=32)
    asyncio.run(run(options.parse_args()))


if __name__ == "__main__":
    main()
