"""A store that fails is left alone, asked again after a while, and both are said once."""

import logging

import pytest

from signalbox_worker.kv.shared.shared_store import FIRST_PAUSE_S, MAX_PAUSE_S, Bypass
from tests.gpu_worker.kv.shared.redis_servers import Clock


def make_bypass() -> tuple[Bypass, Clock]:
    clock = Clock()
    return Bypass("here", clock=clock), clock


def levels(caplog: pytest.LogCaptureFixture) -> list[int]:
    return [record.levelno for record in caplog.records]


def fail(bypass: Bypass) -> None:
    begun = bypass.begin()
    assert begun is not None
    bypass.fail(begun, "it is down")


def test_a_store_that_stays_away_is_asked_less_often(caplog: pytest.LogCaptureFixture) -> None:
    bypass, clock = make_bypass()
    pauses = []
    for _ in range(8):
        fail(bypass)
        start = clock.now
        while bypass.begin() is None:
            clock.now += FIRST_PAUSE_S
        pauses.append(clock.now - start)
        assert bypass.begin() is None  # one call tries
        clock.now += MAX_PAUSE_S
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30]
    begun = bypass.begin()
    assert begun is not None
    bypass.succeed(begun)
    assert bypass.begin() is not None
    assert levels(caplog) == [logging.ERROR, logging.WARNING]
    fail(bypass)
    clock.now += FIRST_PAUSE_S
    assert bypass.begin() is None  # it has not answered for long


def test_a_store_that_has_answered_for_a_while_is_asked_soon() -> None:
    bypass, clock = make_bypass()
    for _ in range(8):
        fail(bypass)
        clock.now += MAX_PAUSE_S
    begun = bypass.begin()
    assert begun is not None
    bypass.succeed(begun)
    clock.now += MAX_PAUSE_S + 1
    fail(bypass)
    clock.now += FIRST_PAUSE_S
    assert bypass.begin() is not None


def test_a_call_that_asks_nothing_leaves_the_attempt_to_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bypass, clock = make_bypass()
    fail(bypass)
    clock.now += FIRST_PAUSE_S
    begun = bypass.begin()
    assert begun is not None
    assert bypass.begin() is None
    bypass.spare(begun)
    assert bypass.begin() is not None
    assert levels(caplog) == [logging.ERROR]


def test_calls_that_fail_together_count_once(caplog: pytest.LogCaptureFixture) -> None:
    bypass, clock = make_bypass()
    calls = [bypass.begin() for _ in range(5)]
    for begun in calls:
        assert begun is not None
        bypass.fail(begun, "it is down")
    clock.now += FIRST_PAUSE_S
    assert bypass.begin() is not None
    assert levels(caplog) == [logging.ERROR]


def test_a_late_success_of_an_old_call_does_not_end_the_bypass(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bypass, _ = make_bypass()
    old = bypass.begin()
    assert old is not None
    fail(bypass)
    bypass.succeed(old)
    assert bypass.begin() is None
    assert levels(caplog) == [logging.ERROR]
