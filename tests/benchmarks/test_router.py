"""The benchmark of the router: requests end in time, latencies are what they say."""

import argparse

import numpy as np
import pytest

from benchmarks.harness.call_readers import CALLS
from benchmarks.harness.event_readers import HTTP_APIS
from benchmarks.harness.paced_scheduler import MIN_VOCAB_SIZE, NUM_STEP_IDS, Pace, PacedScheduler
from benchmarks.router import BARE, ROUTER, latencies_ms, measure
from signalbox_contract.columns import unpack_int64


def test_a_message_is_as_late_as_the_step_of_its_oldest_token() -> None:
    sent_ns = np.arange(3 * NUM_STEP_IDS) * 10_000_000
    steps = np.array([0, 5, NUM_STEP_IDS + 1, 2 * NUM_STEP_IDS + 7])
    late_ns = np.array([1_000_000, 25_000_000, 99_000_000, 0])
    late_ms = latencies_ms(
        sent_ns[steps] + late_ns + 1, MIN_VOCAB_SIZE + steps % NUM_STEP_IDS, sent_ns
    )
    np.testing.assert_allclose(late_ms, late_ns / 1e6, atol=1e-5)


def test_a_request_ends_with_its_last_token() -> None:
    scheduler = PacedScheduler(Pace(num_requests=2, num_groups=1, tokens_per_s=1))
    group = {7: 1, 8: 2}
    first, second = scheduler._step(group), scheduler._step(group)
    assert [unpack_int64(one.handles).tolist() for one in (first, second)] == [[7, 8], [8]]
    ends = [[ended.handle for ended in one.finished_requests] for one in (first, second)]
    assert ends == [[7], [8]]
    assert not group


@pytest.mark.parametrize("server", [ROUTER, BARE, *HTTP_APIS, *CALLS])
async def test_what_is_offered_comes_through(server: str) -> None:
    options = argparse.Namespace(
        clients=4, connections=2, workers=2, max_tokens=8, seconds=1.0, warm_up=0.0, pin=False,
        router_flags=[],
    )  # fmt: skip
    run = await measure(server, options, tokens_per_s=100)
    assert run.num_tokens >= len(run.latency_ms) > 0
    assert run.cpu_s >= 0  # the system counts hundredths of a second
    assert (run.latency_ms > 0).all()
    assert run.row().count("|") == 9
