"""Prompt tokens that the prefix cache finds for a model with recurrent layers, in simulated time.

    python -m benchmarks.found_prefixes [--state-blocks 96 4]

The real scheduler plans for a worker with groups of full attention and of states. Found can be at
most the longest common prefix with all tokens computed before, in whole blocks. The pool has room
for all distinct blocks and two states of each conversation or shared prefix, a quarter of which is
under way at a time, or for a third; the last column is full attention alone in a third of its room.
"""

import argparse
import math
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from benchmarks.harness.answers import Asked
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE, VOCAB_SIZE, SimulatedPool
from benchmarks.simulated_time.simulated_worker import TOKEN
from benchmarks.simulated_time.step_costs import DEMO_ON_CPU
from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup

NUM_AT_ONCE = 3
_USER, _HEADER, _REASONING = [0], [1, 2, 3], [4, 5]
"""Tokens that open a turn of the user and of the assistant, and reasoning."""


class Turn(NamedTuple):
    prompt: list[int]
    num_tokens: int
    named: tuple[int, ...] = ()  # positions, which a router names of conversations
    is_counted: bool = True  # but the first repetition of a prefix that is not named


Thread = list[Turn]  # of a conversation, or of a shared prefix


def text(rng: random.Random, least: int, most: int) -> list[int]:
    return rng.choices(range(10, VOCAB_SIZE), k=rng.randint(least, most))


def conversation(rng: random.Random, system: list[int], *, keeps_reasoning: bool) -> Thread:
    history, turns = list(system), []
    for _ in range(8):
        history += text(rng, 50, 300)
        num_reasoning, num_answer = rng.randint(64, 256), rng.randint(32, 128)
        prompt = [*history, *_HEADER, *_REASONING]
        turns.append(Turn(prompt, num_reasoning + num_answer, (len(system), len(history))))
        kept = [*_REASONING, *[TOKEN] * num_reasoning] if keeps_reasoning else []
        history = [*history, *_HEADER, *kept, *[TOKEN] * num_answer, *_USER]
    return turns


def shared_prefix(rng: random.Random, num_requests: int, *, is_named: bool) -> Thread:
    prefix = [*text(rng, 1024, 4096), *_USER]
    prompts = [[*prefix, *text(rng, 50, 300), *_HEADER] for _ in range(num_requests)]
    named = [(len(prefix), len(one) - len(_HEADER)) if is_named else () for one in prompts]
    return [Turn(one, 32, named[i], is_named or i != 1) for i, one in enumerate(prompts)]


def traces(rng: random.Random, *, shrink: int = 1) -> Iterator[tuple[str, list[Thread]]]:
    """Yields names, and threads, of which there are fewer by a factor."""
    for keeps in (True, False):
        system = [*text(rng, 500, 500), *_USER]
        count = 24 // shrink
        threads = [conversation(rng, system, keeps_reasoning=keeps) for _ in range(count)]
        yield f"{count} conversations, reasoning is {'kept' if keeps else 'dropped'}", threads
    for count, num_requests in ((40, 3), (16, 10), (8, 100), (16, -10)):
        count, is_named, num_requests = count // shrink, num_requests > 0, abs(num_requests)
        threads = [shared_prefix(rng, num_requests, is_named=is_named) for _ in range(count)]
        yield f"{count} prefixes of {num_requests}{'' if is_named else ', not named'}", threads


def rounds(threads: Sequence[Thread], rng: random.Random) -> Iterator[list[Turn]]:
    """Yields the requests that come at once."""
    waiting = [list(reversed(thread)) for thread in threads]
    while waiting:
        active = waiting[: max(1, len(threads) // 4)]
        yield [thread.pop() for thread in rng.sample(active, min(NUM_AT_ONCE, len(active)))]
        waiting = [thread for thread in waiting if thread]


def chain(tokens: Sequence[int]) -> Iterator[int]:
    """Yields a name of each whole block and all before it."""
    name = 0
    for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
        name = hash((name, *tokens[end - BLOCK_SIZE : end]))
        yield name


def common_prefixes(asked: Sequence[Sequence[Turn]]) -> tuple[int, int]:
    """Returns the tokens that could be found of all counted prompts, and the distinct blocks."""
    known, num_tokens = set[int](), 0
    for turns in asked:
        for turn in turns:
            names = list(chain(turn.prompt[:-1]))
            num_common = next((i for i, one in enumerate(names) if one not in known), len(names))
            num_tokens += num_common * BLOCK_SIZE * turn.is_counted
        for turn in turns:
            known.update(chain(turn.prompt + [TOKEN] * (turn.num_tokens - 1)))
    return num_tokens, len(known)


def found(asked: Sequence[Sequence[Turn]], num_blocks: int, *others: CacheGroup) -> int:
    """Returns the tokens of all counted prompts that a worker with so many blocks finds."""
    pool = SimulatedPool(
        DEMO_ON_CPU,
        num_workers=1,
        max_num_seqs=NUM_AT_ONCE,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=0,
        groups=(FULL_GROUP, *others),
    )
    for turns in asked:
        for prompt, num_tokens, named, _ in turns:
            asked_for = Asked(len(prompt), num_tokens)
            pool.ask(asked_for, prompt_token_ids=prompt, snapshot_positions=named)
        pool.clock.run(until=math.inf)
    pool.check()
    counted = [turn.is_counted for turns in asked for turn in turns]
    return sum(a.num_cached for a, one in zip(pool.clients.answers, counted, strict=True) if one)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--state-blocks", type=int, nargs="+", default=[96, 4])
    for state_blocks in parser.parse_args().state_blocks:
        print(f"\nA state takes {state_blocks} blocks of {BLOCK_SIZE} tokens.\n")
        print("| requests | common prefixes, tokens | found, room for all | for a third", end=" | ")
        print(f"full attention, for a third |\n{'|---' * 5}|")
        rng, states = random.Random(0), CacheGroup(kind="state", state_blocks=state_blocks)
        for name, threads in traces(rng):
            asked = list(rounds(threads, rng))
            most, num_rows = common_prefixes(asked)
            for_all = num_rows + 2 * state_blocks * len(threads)
            rooms = ((for_all, states), (for_all // 3, states), (num_rows // 3,))
            shares = (f"{found(asked, *room) / most:.3f}" for room in rooms)
            print(f"| {name} | {most} | {' | '.join(shares)} |", flush=True)


if __name__ == "__main__":
    main()
