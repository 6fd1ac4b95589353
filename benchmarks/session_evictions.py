"""Prompt tokens of agents' sessions that the prefix cache finds, by what it evicts.

    python -m benchmarks.session_evictions [--agents 16 64] [--seeds 20] [--workloads NAME ...]

The real scheduler plans for a worker in simulated time, whose pool has room for a third of the
sessions that the agents have at a time. `lru` is the prefix cache as it is. The others choose among
the sessions: `recent` by last use, `told` by the distribution of each session's pause, `oracle` by
its next use; a prefix for which a request waits goes last. Pauses and prompts of a seed are the
same for all. The first request of each agent, whose prefix is nowhere, does not count.
"""

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean, median
from typing import NamedTuple

from benchmarks.harness.answers import Answer, Asked
from benchmarks.simulated_time.agent_sessions import (
    WORKLOADS,
    Session,
    Turn,
    make_agents,
    num_tokens,
    num_tokens_at_once,
)
from benchmarks.simulated_time.chain_eviction import WORTHS, ChainEviction, SessionState
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE, SimulatedPool
from benchmarks.simulated_time.simulated_worker import TOKEN
from benchmarks.simulated_time.step_costs import PROFILES, StepCosts
from signalbox.bench.measurements import percentile_ms

LRU = "lru"
POLICIES = (LRU, *WORTHS)
START_S = 30.0
"""Time within which the agents begin."""


class Figures(NamedTuple):
    """Of the requests of one replay that count."""

    prompt_tokens: int
    computed_tokens: int
    first_token_p50_ms: float
    first_token_p95_ms: float

    @property
    def found(self) -> float:
        """Share of the prompts' tokens that were found."""
        return 1 - self.computed_tokens / self.prompt_tokens


class Agent:
    """A client that asks, waits for the answer, pauses and asks again.

    Args:
        states: gets the state of the session of each request, by the request's id.
    """

    def __init__(
        self, sessions: Sequence[Session], pool: SimulatedPool, states: dict[str, SessionState]
    ) -> None:
        self.answers: list[Answer] = []
        self._turns = self._flatten(sessions)
        self._pool = pool
        self._states = states
        self._history: list[int] = []
        self._state = SessionState()

    @staticmethod
    def _flatten(sessions: Sequence[Session]) -> Iterator[tuple[Turn, bool, bool]]:
        """Yields each turn, and whether it is the first and the last one of its session."""
        for session in sessions:
            for number, turn in enumerate(session):
                yield turn, number == 0, number == len(session) - 1

    def ask(self) -> None:
        """Sends the next request, if there is one."""
        turn, is_first, is_last = next(self._turns, (None, False, False))
        if turn is None:
            return
        if is_first:
            self._history, self._state = [], SessionState()
        self._state.pauses = None
        self._history += turn.text
        handle = self._pool.ask(
            Asked(len(self._history), turn.num_answer),
            when_ended=partial(self._pause, turn, is_last=is_last),
            prompt_token_ids=list(self._history),
        )
        self._states[f"r{handle}"] = self._state
        self.answers.append(self._pool.clients.answers[handle - 1])

    def _pause(self, turn: Turn, *, is_last: bool) -> None:
        self._history += [TOKEN] * turn.num_answer
        now = self._pool.clock.now
        self._state.pauses, self._state.paused_at = turn.pauses, now
        self._state.next_use = math.inf if is_last else now + turn.pause_s
        self._pool.clock.call_at(now + turn.pause_s, self.ask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Sessions that each policy gets."""

    costs: StepCosts
    workload: str
    num_agents: int
    horizon_s: float
    seed: int

    def run(self, policy: str) -> Figures:
        """Lets all sessions end."""
        agents = make_agents(
            self.workload, num_agents=self.num_agents, horizon_s=self.horizon_s, seed=self.seed
        )
        pool = SimulatedPool(
            self.costs,
            num_workers=1,
            max_num_seqs=128,
            num_gpu_blocks=num_blocks_for_a_third(agents),
            num_cpu_blocks=0,
            max_model_len=1 << 15,
        )
        states = dict[str, SessionState]()
        if policy != LRU:
            blocks = pool.workers[0].loop.scheduler.blocks
            blocks.gpu.eviction = ChainEviction(WORTHS[policy], states, clock=pool.clock)
        clients = [Agent(sessions, pool, states) for sessions in agents]
        for number, client in enumerate(clients):
            pool.clock.call_at(START_S * number / len(clients), client.ask)
        pool.clock.run(until=math.inf)
        pool.check()
        return figures([answer for client in clients for answer in client.answers[1:]])


def num_blocks_for_a_third(agents: Sequence[Sequence[Session]]) -> int:
    """Returns the blocks for a third of what the agents have, or for the longest session."""
    longest = max(num_tokens(session) for sessions in agents for session in sessions)
    return int(max(num_tokens_at_once(agents) / 3, 1.1 * longest)) // BLOCK_SIZE


def figures(answers: Sequence[Answer]) -> Figures:
    prompt_tokens = sum(answer.asked.prompt_tokens for answer in answers)
    first_s = [answer.first_token_s for answer in answers]
    return Figures(
        prompt_tokens=prompt_tokens,
        computed_tokens=prompt_tokens - sum(answer.num_cached for answer in answers),
        first_token_p50_ms=percentile_ms(first_s, 50),
        first_token_p95_ms=percentile_ms(first_s, 95),
    )


HEADER = (
    "| sessions | policy | found | more than lru, points: mean, least | of the gap to the oracle"
    " | computed, of lru's: mean, most | TTFT p50 ms | p95 |\n|---|---|---|---|---|---|---|---|"
)


def rows(workload: str, by_policy: dict[str, list[Figures]]) -> Iterator[str]:
    """Yields a row for each policy; figures are by seed."""
    plain = by_policy[LRU]
    gap = None
    if "oracle" in by_policy:
        gap = mean(one.found for one in by_policy["oracle"]) - mean(one.found for one in plain)
    for policy, seeds in by_policy.items():
        gains = [one.found - other.found for one, other in zip(seeds, plain, strict=True)]
        ratios = [
            one.computed_tokens / other.computed_tokens
            for one, other in zip(seeds, plain, strict=True)
        ]
        cells = (
            workload,
            policy,
            f"{mean(one.found for one in seeds):.1%}",
            f"{100 * mean(gains):+.1f}, {100 * min(gains):+.1f}",
            f"{mean(gains) / gap:.2f}" if gap else "",
            f"{mean(ratios):.3f}, {max(ratios):.3f}",
            f"{median(one.first_token_p50_ms for one in seeds):,.0f}",
            f"{median(one.first_token_p95_ms for one in seeds):,.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--profile", choices=PROFILES, default="h100")
    parser.add_argument("--agents", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--horizon", type=float, default=400.0, help="seconds that are simulated")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    args = parser.parse_args()
    policies = [LRU, *(policy for policy in args.policies if policy != LRU)]
    for num_agents in args.agents:
        print(f"\n{num_agents} agents, {args.seeds} seeds, {PROFILES[args.profile].name}\n")
        print(HEADER, flush=True)
        for workload in args.workloads:
            replays = [
                Replay(
                    costs=PROFILES[args.profile],
                    workload=workload,
                    num_agents=num_agents,
                    horizon_s=args.horizon,
                    seed=seed,
                )
                for seed in range(args.seeds)
            ]
            by_policy = {policy: [replay.run(policy) for replay in replays] for policy in policies}
            print("\n".join(rows(workload, by_policy)), flush=True)


if __name__ == "__main__":
    main()
