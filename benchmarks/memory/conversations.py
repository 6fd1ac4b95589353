"""Measures the gain of keeping prefixes on the CPU that do not fit the GPU.

    python -m benchmarks.memory.conversations MODEL ...

Eight conversations of 1,024 tokens take turns, where the GPU has room for four of them, with and
without the second tier. Prints a Markdown table. `compare --loads shared` measures a prefix that
fits, beside vLLM.
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

    async def in_order(server: ServerProcess, round_number: int) -> Measured:
        return await measure(server, seed=round_number, **lengths)

    servers = Servers(options)
    room = (lengths["shared_tokens"] // BLOCK_SIZE + 2) * NUM_CONVERSATIONS // 2
    few = ("--num-gpu-blocks-override", str(room + 8))
    tiers = [
        servers.ours("GPU alone", *few, "--no-cpu-prefix-cache"),
        servers.ours("GPU and CPU", *few),
    ]
    print(table("kept on", await in_turns(tiers, in_order, rounds=options.rounds)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--shared-tokens", type=int, default=1024)
    options.add_argument("--own-tokens", type=int, default=32)
    options.add_argument("--max-tokens", type=int, default=32)
    asyncio.run(run(options.parse_args()))


if __name__ == "__main__":
    main()
