"""Long prompts beside streams of short chats: goodput, and how long tokens are apart.

    python -m benchmarks.disaggregation [--profile h100 cpu] [--workers 4] [--rates 16 32 48]
        [--prefill 0 1 2] [--budgets 512 2048] [--answer-tokens N]
    python -m benchmarks.disaggregation --model MODEL [--workers 2] [--prefill 0 1] ...

Requests come at random times; one of ten has a long prompt. A request is good if its first token
and its mean time between tokens are within the objectives, and goodput is good requests a second.
Each pool gets the same requests: one of workers that all do both (0), and of so many that compute
prompts for the others. Without a model the real scheduler plans for workers in simulated time,
whose steps cost what was measured or what a data sheet says: see simulated_time/step_costs.py. With
one all is real, each worker has one thread and a core, and all pools have to answer with the same
tokens.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.harness.answers import Answer, Asked
from benchmarks.harness.model_pool import ModelAnswer, ModelPool, model_pool
from benchmarks.harness.prompts import random_prompts
from benchmarks.simulated_time.simulated_pool import SimulatedPool
from benchmarks.simulated_time.step_costs import PROFILES, StepCosts
from signalbox.bench.measurements import percentile_ms
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import SchedulerConfig

LONG_SHARE = 0.1
"""Share of the requests that have a long prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests of a profile, and what their clients hope for."""

    chat: Asked
    long: Asked
    first_token_s: float
    """Objective of the time to the first token (TTFT)."""
    per_token_s: float
    """Objective of the mean time between tokens of a request (TPOT)."""
    rates: tuple[float, ...]
    """Requests a second."""
    num_gpu_blocks: int
    max_num_seqs: int = 128

    def is_good(self, answer: Answer) -> bool:
        is_early = answer.first_token_s <= self.first_token_s
        return answer.is_whole and is_early and answer.per_token_s <= self.per_token_s


LOADS = {
    "h100": Load(
        chat=Asked(512, 256),
        long=Asked(8192, 128),
        first_token_s=1.0,
        per_token_s=0.012,
        rates=(16, 32, 48, 56),
        num_gpu_blocks=28_000,
    ),
    "cpu": Load(
        chat=Asked(128, 128),
        long=Asked(2048, 64),
        first_token_s=5.0,
        per_token_s=0.05,
        rates=(2, 4, 5, 6),
        num_gpu_blocks=6_000,
        max_num_seqs=64,
    ),
}


@dataclass(frozen=True, slots=True)
class PoolKind:
    """Arrangement of the workers of a pool, and the budget of their steps."""

    max_num_batched_tokens: int
    num_prefill: int = 0
    """Workers that compute prompts for the others; 0 is none."""

    @property
    def name(self) -> str:
        roles = f"{self.num_prefill} for prompts" if self.num_prefill else "all do both"
        return f"{roles}, steps of {self.max_num_batched_tokens}"

    def roles(self, num_workers: int) -> list[WorkerRole]:
        """Returns what each worker asks to compute."""
        others = WorkerRole.DECODE if self.num_prefill else WorkerRole.BOTH
        return [WorkerRole.PREFILL] * self.num_prefill + [others] * (num_workers - self.num_prefill)

    def make(self, costs: StepCosts, load: Load, num_workers: int) -> SimulatedPool:
        pool = SimulatedPool(
            costs,
            num_workers=0,
            max_num_seqs=load.max_num_seqs,
            num_gpu_blocks=load.num_gpu_blocks,
            max_num_batched_tokens=self.max_num_batched_tokens,
            settings=SchedulerConfig(max_queued_requests=1 << 20),
        )
        for role in self.roles(num_workers):
            pool.join(role)
        return pool


def arrivals(
    load: Load, *, rate: float, seconds: float, seed: int
) -> Iterator[tuple[float, Asked]]:
    """Yields the time and the kind of each request."""
    rng, now = random.Random(seed), 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        yield now, load.long if rng.random() < LONG_SHARE else load.chat


def measure(
    costs: StepCosts,
    load: Load,
    kind: PoolKind,
    *,
    num_workers: int,
    rate: float,
    seconds: float,
    seed: int = 0,
) -> list[Answer]:
    """Puts requests of so many seconds to a pool, and lets it end them all."""
    pool = kind.make(costs, load, num_workers)
    for when, asked in arrivals(load, rate=rate, seconds=seconds, seed=seed):
        pool.ask_at(when, asked)
    pool.clock.run(until=1e9)
    pool.check()
    return pool.clients.answers


async def measure_model(
    model: str,
    load: Load,
    kind: PoolKind,
    *,
    num_workers: int,
    rate: float,
    seconds: float,
    seed: int = 0,
    kv_gib: float = 3.0,
) -> tuple[list[ModelAnswer], int]:
    """Does the same with workers of a model; returns how many requests were migrated, too."""
    async with model_pool(model) as pool:
        for core, role in enumerate(kind.roles(num_workers)):
            await pool.join(
                *("--role", role.value, "--swap-space", "1", "--kv-cache-memory", str(kv_gib)),
                *("--max-num-seqs", str(load.max_num_seqs)),
                *("--max-num-batched-tokens", str(kind.max_num_batched_tokens)),
                core=core,
            )
        size = (await pool.model()).vocab_size
        warm = random_prompts(vocab_size=size, num_tokens=64, seed=seed + 1)
        for _ in range(2 * num_workers):
            pool.ask(next(warm), max_tokens=16)
        await pool.until_whole(pool.answers)
        answers = await _ask_all(pool, load, size, rate=rate, seconds=seconds, seed=seed)
        await pool.until_whole(answers)
        num_out = await pool.count_migrations(answers)
        return answers, num_out


async def _ask_all(
    pool: ModelPool, load: Load, vocab_size: int, *, rate: float, seconds: float, seed: int
) -> list[ModelAnswer]:
    """Sends each request at its time."""
    prompts = {
        asked: random_prompts(vocab_size=vocab_size, num_tokens=asked.prompt_tokens, seed=seed)
        for asked in (load.chat, load.long)
    }
    answers, start = [], time.perf_counter()
    for when, asked in arrivals(load, rate=rate, seconds=seconds, seed=seed):
        prompt = next(prompts[asked])
        await asyncio.sleep(start + when - time.perf_counter())
        answers.append(pool.ask(prompt, max_tokens=asked.max_tokens))
    return answers


def row(
    load: Load, kind: PoolKind, answers: Sequence[Answer], *, rate: float, seconds: float
) -> str:
    """Returns a row of the table."""
    good = sum(map(load.is_good, answers))
    chats = [answer for answer in answers if answer.asked == load.chat]
    gaps = [gap for answer in answers for gap in answer.gaps_s]
    firsts = [
        percentile_ms([one.first_token_s for one in some], percent)
        for some, percent in ((chats, 50), (chats, 99), (answers, 99))
    ]
    between = (percentile_ms(gaps, percent) for percent in (50, 99, 100))
    return (
        f"| {rate:g} | {kind.name} | {good / seconds:.2f} | {good / len(answers):.0%}"
        f" | {' / '.join(f'{value:.0f}' for value in firsts)}"
        f" | {1e3 * median(one.per_token_s for one in answers):.1f}"
        f" | {' / '.join(f'{value:.1f}' for value in between)} |"
    )


HEADER = (
    "| requests/s | pool | goodput/s | good | TTFT of chats p50 / p99, of all p99, ms | TPOT p50 ms"
    " | between tokens p50 / p99 / longest ms |\n|---|---|---|---|---|---|---|"
)


def run_simulated(args: argparse.Namespace, profile: str) -> None:
    costs, load = PROFILES[profile], _load(profile, args)
    _print_header(costs.name, args, load)
    for rate in args.rates or load.rates:
        for kind in _kinds(args):
            answers = measure(
                costs,
                load,
                kind,
                num_workers=args.workers,
                rate=rate,
                seconds=args.seconds,
            )
            print(row(load, kind, answers, rate=rate, seconds=args.seconds), flush=True)


async def run_model(args: argparse.Namespace) -> None:
    load = _load("cpu", args)
    _print_header(args.model, args, load)
    for rate in args.rates or load.rates:
        tokens = None
        for kind in _kinds(args):
            answers, num_out = await measure_model(
                args.model,
                load,
                kind,
                num_workers=args.workers,
                rate=rate,
                seconds=args.seconds,
            )
            tokens = tokens or [answer.token_ids for answer in answers]
            assert tokens == [answer.token_ids for answer in answers], "pools differ in tokens"
            print(row(load, kind, answers, rate=rate, seconds=args.seconds))
            print(f"<!-- {num_out} of {len(answers)} were migrated -->", flush=True)


def _load(profile: str, args: argparse.Namespace) -> Load:
    load = LOADS[profile]
    if args.answer_tokens:
        load = replace(load, chat=Asked(load.chat.prompt_tokens, args.answer_tokens))
    return load


def _kinds(args: argparse.Namespace) -> list[PoolKind]:
    return [PoolKind(budget, number) for budget in args.budgets for number in args.prefill]


def _print_header(name: str, args: argparse.Namespace, load: Load) -> None:
    print(
        f"\n{name}: {args.workers} workers; chats of {load.chat.prompt_tokens} +"
        f" {load.chat.max_tokens} tokens, {LONG_SHARE:.0%} of {load.long.prompt_tokens} +"
        f" {load.long.max_tokens}; TTFT within {load.first_token_s:g} s, TPOT within"
        f" {1e3 * load.per_token_s:g} ms\n\n{HEADER}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rates", type=float, nargs="+", help="requests a second")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals")
    parser.add_argument("--budgets", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--prefill", type=int, nargs="*", default=[0, 1, 2], metavar="N")
    parser.add_argument("--answer-tokens", type=int, help="of a chat, instead of the profile's")
    parser.add_argument("--model", help="of real workers, under the load of the profile cpu")
    args = parser.parse_args()
    if args.model:
        asyncio.run(run_model(args))
        return
    for profile in args.profile:
        run_simulated(args, profile)


if __name__ == "__main__":
    main()
