"""Sessions of agents: turns over one growing prompt, and the pauses between them."""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from statistics import NormalDist
from typing import NamedTuple

from benchmarks.simulated_time.simulated_pool import VOCAB_SIZE
from benchmarks.simulated_time.simulated_worker import TOKEN

SYSTEM_TOKENS = 3072
"""Of the prompt that a session begins with; four agents share one."""
LEAST_TURNS, MOST_TURNS = 20, 60
TOOL_SHARE = 0.9
"""Share of the answers that call a tool."""
SHORT_S, MIDDLE_S, LONG_S = 4.0, 15.0, 90.0
"""Medians of pauses."""
GOES_ON = 1 - 2 / (LEAST_TURNS + MOST_TURNS)
"""Probability that an answer is not the last of its session."""
GOES_ON_WITHOUT_CALL = 1 - (1 - GOES_ON) / (1 - TOOL_SHARE * GOES_ON)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Distribution of the time from an answer to the next request of its session: log-normal."""

    median_s: float
    sigma: float = 1.0
    returns: float = 1.0
    """Probability that there is a next request."""

    def draw(self, rng: random.Random) -> float:
        return self.median_s * math.exp(rng.gauss(0.0, self.sigma))

    def worth(self, age_s: float) -> float:
        """Returns the hits that a second of memory gives after a pause of so long.

        The memory is given up after the time that makes this the most (the Gittins index, which
        LHD, Beckmann et al., NSDI 2018, estimates for caches).
        """
        ages, worths = _worths(self.sigma, self.returns)
        return worths[bisect_right(ages, age_s / self.median_s) - 1] / self.median_s


@cache
def _worths(sigma: float, returns: float) -> tuple[list[float], list[float]]:
    """Returns ages, in medians, and the worth at each."""
    steps = [number / 8 for number in range(-32, 33)]
    ages = [0.0, *(math.exp(sigma * step) for step in steps)]
    returned = [0.0, *(returns * NormalDist().cdf(step) for step in steps)]
    pieces = (
        (later - age) * (1 - (before + after) / 2)
        for (age, later), (before, after) in zip(pairwise(ages), pairwise(returned), strict=True)
    )
    kept_s = list(accumulate(pieces, initial=0.0))
    worths = [
        max(
            (returned[end] - returned[start]) / (kept_s[end] - kept_s[start])
            for end in range(start + 1, len(ages))
        )
        for start in range(len(ages) - 1)
    ]
    return ages[:-1], worths


class Turn(NamedTuple):
    text: list[int]
    """Tokens that the prompt has more than the one before and its answer."""
    num_answer: int
    pause_s: float
    """Time from the answer to the next request, of the next session after the last one."""
    pauses: Pauses
    """Distribution of that time."""


Session = list[Turn]
Habits = Callable[[bool, bool], Pauses]
"""Pauses of an agent, by whether the answer calls a tool, and whether half of the time is over."""


def _one_kind(_rng: random.Random, _agent: int) -> Habits:
    pauses = Pauses(MIDDLE_S, returns=GOES_ON)
    return lambda _calls, _late: pauses


def _by_end(_rng: random.Random, _agent: int) -> Habits:
    return lambda calls, _late: _two_kinds(calls, is_short=calls)


def _by_session(_rng: random.Random, agent: int) -> Habits:
    pauses = Pauses((SHORT_S, LONG_S)[agent % 2], returns=GOES_ON)
    return lambda _calls, _late: pauses


def _by_agent(rng: random.Random, _agent: int) -> Habits:
    pauses = Pauses(MIDDLE_S * math.exp(rng.gauss(0.0, 1.0)), sigma=0.5, returns=GOES_ON)
    return lambda _calls, _late: pauses


def _changing(_rng: random.Random, _agent: int) -> Habits:
    return lambda calls, late: _two_kinds(calls, is_short=calls is not late)


def _two_kinds(calls: bool, *, is_short: bool) -> Pauses:
    return Pauses(SHORT_S if is_short else LONG_S, returns=1.0 if calls else GOES_ON_WITHOUT_CALL)


WORKLOADS: dict[str, Callable[[random.Random, int], Habits]] = {
    "one kind": _one_kind,
    "two kinds, by end": _by_end,
    "two kinds, by session": _by_session,
    "each session its own": _by_agent,
    "kinds change halfway": _changing,
}


def make_agents(
    workload: str, *, num_agents: int, horizon_s: float, seed: int
) -> list[list[Session]]:
    """Returns the sessions of each agent, one after another; the first one is under way."""
    rng = random.Random(seed)
    systems = [_text(rng, SYSTEM_TOKENS) for _ in range(-(-num_agents // 4))]
    return [
        _make_sessions(
            WORKLOADS[workload](rng, agent),
            rng,
            system=systems[agent // 4],
            horizon_s=horizon_s,
        )
        for agent in range(num_agents)
    ]


def _make_sessions(
    habits: Habits, rng: random.Random, *, system: list[int], horizon_s: float
) -> list[Session]:
    sessions, now = list[Session](), 0.0
    while now < horizon_s:
        num_turns = rng.randint(LEAST_TURNS, MOST_TURNS)
        num_before = 0 if sessions else rng.randrange(num_turns)
        history, session = list(system), Session()
        for number in range(num_turns):
            is_last = number == num_turns - 1
            calls = not is_last and rng.random() < TOOL_SHARE
            pauses = habits(calls, now > horizon_s / 2)
            history += _text(rng, min(1024, int(120 * math.exp(rng.gauss(0.0, 0.8)))))
            turn = Turn(history, rng.randint(16, 48), pauses.draw(rng), pauses)
            if number < num_before:
                history += [TOKEN] * turn.num_answer
                continue
            session.append(turn)
            now += turn.pause_s
            if now >= horizon_s:
                break
            history = []
        sessions.append(session)
    return sessions


def _text(rng: random.Random, num_tokens: int) -> list[int]:
    return rng.choices(range(10, VOCAB_SIZE), k=max(16, num_tokens))


def num_tokens(session: Session) -> int:
    """Returns the tokens of a session's last prompt and its answer."""
    return sum(len(turn.text) + turn.num_answer for turn in session)


def num_tokens_at_once(agents: Sequence[Sequence[Session]]) -> int:
    """Returns the distinct tokens of the prompts that all agents have at a time, on average."""
    own = 0.0
    for sessions in agents:
        sizes = [
            size - SYSTEM_TOKENS
            for session in sessions
            for size in accumulate(len(turn.text) + turn.num_answer for turn in session)
        ]
        own += sum(sizes) / len(sizes)
    return int(own) + SYSTEM_TOKENS * -(-len(agents) // 4)
