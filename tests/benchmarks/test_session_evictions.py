"""Agents' sessions in simulated time: policies get the same requests, and better ones find more."""

import math
import random
from itertools import pairwise

import pytest

from benchmarks.session_evictions import LRU, POLICIES, Figures, Replay, rows
from benchmarks.simulated_time.agent_sessions import (
    SYSTEM_TOKENS,
    WORKLOADS,
    Pauses,
    make_agents,
    num_tokens_at_once,
)
from benchmarks.simulated_time.chain_eviction import ChainEviction, SessionState, worth_to_oracle
from benchmarks.simulated_time.event_clock import EventClock
from benchmarks.simulated_time.simulated_pool import BLOCK_SIZE
from benchmarks.simulated_time.step_costs import PROFILES
from signalbox_contract.cache_groups import FULL_GROUP
from tests.scheduler_svc.kv.test_cache_groups import compute, make_blocks
from tests.scheduler_svc.make import make_request


@pytest.mark.parametrize("workload", WORKLOADS)
def test_sessions_of_a_seed_are_the_same_and_share_system_prompts(workload: str) -> None:
    first, again, other = (
        make_agents(workload, num_agents=5, horizon_s=100.0, seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    systems = {tuple(session[0].text[:SYSTEM_TOKENS]) for agent in first for session in agent}
    assert len(systems) == 2
    for sessions in first:
        assert sum(turn.pause_s for session in sessions for turn in session) >= 100.0
    assert num_tokens_at_once(first) > 2 * SYSTEM_TOKENS


def test_kinds_of_pauses_are_told_apart_by_the_end_of_the_answer_and_change_halfway() -> None:
    by_end, changing = (
        WORKLOADS[name](random.Random(0), 0)
        for name in ("two kinds, by end", "kinds change halfway")
    )
    assert by_end(True, True) == by_end(True, False) == changing(True, False)
    assert by_end(True, False).median_s < by_end(False, False).median_s
    assert changing(True, True).median_s == by_end(False, False).median_s
    assert changing(False, True).median_s == by_end(True, False).median_s
    assert by_end(True, False).returns == 1.0 > by_end(False, False).returns > 0.5


def test_a_prefix_is_worth_less_if_the_pause_is_long_or_has_been_or_none_may_return() -> None:
    short, long, last = Pauses(4.0), Pauses(20.0), Pauses(4.0, returns=0.5)
    assert short.worth(0.0) == pytest.approx(5 * long.worth(0.0))
    assert last.worth(0.0) < short.worth(0.0)
    ages = [4.0 * math.exp(number) for number in range(5)]
    assert all(short.worth(age) > short.worth(later) for age, later in pairwise(ages))
    assert short.worth(200.0) < long.worth(0.0), "a short pause that is overdue"
    narrow = Pauses(4.0, sigma=0.1)
    assert narrow.worth(3.5) > narrow.worth(0.0), "one that is about to end"


def test_the_session_that_returns_last_is_evicted_from_its_end_up_to_what_another_has() -> None:
    clock, states = EventClock(), dict[str, SessionState]()
    blocks = make_blocks((FULL_GROUP,), num_gpu_blocks=8)
    blocks.gpu.eviction = ChainEviction(worth_to_oracle, states, clock=clock)

    def run(kinds: list[int], *, next_use: float) -> list[bytes]:
        """Computes a block of each kind; returns the names of those blocks."""
        group = make_request([kind for kind in kinds for _ in range(BLOCK_SIZE)] + [9])
        (seq,) = group.sequences
        states[group.request_id] = SessionState(Pauses(1.0), 0.0, next_use)
        prefix = blocks.find_prefix(seq)
        seq.num_computed_tokens = blocks.num_tokens(len(prefix))
        blocks.start(seq, prefix)
        compute(blocks, seq, seq.num_tokens - seq.num_computed_tokens)
        names = blocks.prefix_hashes(seq, 0, len(kinds))
        blocks.free(seq)
        blocks.check([])
        return names

    late = run([1, 2, 3], next_use=9.0)
    soon = run([1, 4], next_use=5.0)
    assert soon[0] == late[0]
    run([5, 6, 7, 8], next_use=1.0)  # 8 blocks; the others had 4
    assert [blocks.gpu.find(name) is not None for name in late] == [True, True, False]
    run([5, 6, 7, 8, 9], next_use=1.0)
    assert [blocks.gpu.find(name) is not None for name in late] == [True, False, False]
    assert blocks.gpu.find(soon[1]) is not None


def test_all_policies_get_the_same_requests_and_the_oracle_finds_most() -> None:
    replay = Replay(
        costs=PROFILES["h100"], workload="two kinds, by end", num_agents=6, horizon_s=60.0, seed=3
    )
    figures = {policy: [replay.run(policy)] for policy in POLICIES}
    assert len({one.prompt_tokens for (one,) in figures.values()}) == 1
    (plain,), (oracle,) = figures[LRU], figures["oracle"]
    assert 0 < plain.found < oracle.found < 1
    assert plain.first_token_p95_ms >= plain.first_token_p50_ms > 0
    assert len([*rows("two kinds, by end", figures)]) == len(POLICIES)


def test_a_row_compares_each_seed_with_its_own_of_lru() -> None:
    plain = [Figures(100, 50, 1.0, 2.0), Figures(100, 60, 1.0, 2.0)]
    better = [Figures(100, 40, 1.0, 2.0), Figures(100, 57, 1.0, 2.0)]
    best = [Figures(100, 30, 1.0, 2.0), Figures(100, 40, 1.0, 2.0)]
    _, row, _ = rows("a", {LRU: plain, "told": better, "oracle": best})
    assert row == "| a | told | 51.5% | +6.5, +3.0 | 0.33 | 0.875, 0.950 | 1 | 2 |"
