"""Measures how long running streams wait for their tokens while long prompts arrive.

    python -m benchmarks.memory.long_prompts MODEL [--peers DIR] [--budgets 512 8192] ...

Eight clients stream, and meanwhile prompts of 4,000 tokens come in one after the other. Tokens, and
the times between them, are those of the streams while long prompts are computed; the time to the
first token is that of the long prompts. One row for each budget of tokens a step: a small one cuts
prompts into chunks, a large one does not. With --peers vLLM too. Prints a Markdown table.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator
from itertools import islice

from benchmarks.comparison.turns import Servers, in_turns, parser, table
from benchmarks.harness.prompts import random_prompts
from benchmarks.memory.memory_pressure import SIMULATED_VOCAB_SIZE, VOCAB_SIZE
from benchmarks.peers.process import ServerProcess, finding_nothing
from signalbox.bench.measurements import Measured, observe


async def measure(
    server: ServerProcess,
    *,
    num_streams: int,
    stream_tokens: int,
    num_long: int,
    long_tokens: int,
    vocab_size: int = VOCAB_SIZE,
    seed: int = 0,
) -> Measured:
    """Puts streams and long prompts to a server that is ready. Raises FoundInCache."""
    short = random_prompts(vocab_size=vocab_size, num_tokens=32, seed=2 * seed)
    long = random_prompts(vocab_size=vocab_size, num_tokens=long_tokens, seed=2 * seed + 1)
    streamed, arrived = Measured(), Measured()
    clients = [
        asyncio.create_task(_keep_streaming(server, short, stream_tokens, streamed))
        for _ in range(num_streams)
    ]
    try:
        while len(streamed.between_tokens_s) < 4 * num_streams:  # all of them have begun
            await _unless_one_failed(clients)
        streamed.between_tokens_s.clear()
        start = time.perf_counter()
        with finding_nothing(server):
            for prompt in islice(long, num_long):
                await observe(server.stream(prompt, max_tokens=4), arrived)
        streamed.duration_s = time.perf_counter() - start
        num_tokens = len(streamed.between_tokens_s)
    finally:
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    streamed.num_tokens = num_tokens  # those of streams that were cut off are not of the time
    del streamed.between_tokens_s[num_tokens:]
    streamed.first_token_s = arrived.first_token_s
    return streamed


async def _keep_streaming(
    server: ServerProcess, prompts: Iterator[list[int]], max_tokens: int, measured: Measured
) -> None:
    for prompt in prompts:
        await observe(server.stream(prompt, max_tokens=max_tokens), measured)


async def _unless_one_failed(clients: list[asyncio.Task[None]]) -> None:
    done, _ = await asyncio.wait(clients, timeout=0.05, return_when=asyncio.FIRST_EXCEPTION)
    for client in done:
        client.result()


async def run(options: argparse.Namespace) -> None:
    long_tokens = max(64, options.long_tokens // options.shrink)

    async def turn(server: ServerProcess, round_number: int) -> Measured:
        return await measure(
            server,
            num_streams=options.streams,
            stream_tokens=options.stream_tokens,
            num_long=options.long,
            long_tokens=long_tokens,
            vocab_size=VOCAB_SIZE if options.model else SIMULATED_VOCAB_SIZE,
            seed=round_number,
        )

    servers, participants = Servers(options), list[ServerProcess]()
    for budget in options.budgets:
        flags = ("--max-num-batched-tokens", str(budget))
        participants.append(servers.ours(f"{budget} tokens a step", *flags))
    for budget in options.budgets:
        flags = ("--max-num-batched-tokens", str(budget))
        participants += servers.vllm(f"{budget} tokens a step", *flags)
    results = await in_turns(participants, turn, rounds=options.rounds)
    print(table(f"{long_tokens:,}-token prompts", results))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--budgets", type=int, nargs="+", default=[512, 8192])
    options.add_argument("--streams", type=int, default=8)
    options.add_argument("--stream-tokens", type=int, default=512)
    options.add_argument("--long", type=int, default=4, help="prompts that arrive")
    options.add_argument("--long-tokens", type=int, default=4000)
    asyncio.run(run(options.parse_args()))


if __name__ == "__main__":
    main()
