"""How many workers the load needs, and when their number changes."""

import pytest

from signalbox.settings.worker_range import WorkerRange
from signalbox.stack.autoscaling import Demand, needed_workers, wanted_workers

BOUNDS = WorkerRange(1, 4)


@pytest.mark.parametrize(
    ("num_waiting", "kv_usages", "needed"),
    [
        (0, [], 0),
        (0, [0.0, 0.0], 0),
        (1, [0.0], 1),
        (8, [0.5], 1),
        (9, [0.5], 2),
        (0, [0.8, 0.8, 0.8], 3),  # not one more by the rounding of sums
        (0, [0.9, 0.8, 0.8], 4),
        (0, [0.5, 0.2], 1),  # one worker has room for what both hold
        (30, [0.9], 4),
    ],
)
def test_a_worker_is_due_for_8_requests_that_wait_or_80_percent_of_blocks(
    num_waiting: int, kv_usages: list[float], needed: int
) -> None:
    assert needed_workers(num_waiting=num_waiting, kv_usages=kv_usages) == needed


def demands(*numbers: int, step_s: float = 100.0) -> list[Demand]:
    """Demands each `step_s` seconds, the first at 1000 s."""
    return [Demand(1000 + step_s * index, number) for index, number in enumerate(numbers)]


@pytest.mark.parametrize(
    ("seen", "wanted", "changed_at", "then"),
    [
        (demands(3), 1, 900, 3),  # at once, and as many as are needed
        (demands(9), 1, 900, 4),  # not above the bounds
        (demands(3), 2, 990, 2),  # not within 15 s of a change
        (demands(1, 1, 1, 1, 1, 1, 1), 3, 900, 2),  # one by one
        (demands(0, 0, 0, 0, 0, 0, 0), 1, 900, 1),  # not below the bounds
        (demands(1, 1, 1, 1, 1, 1), 3, 900, 3),  # not before ten minutes of calm
        (demands(1, 1, 3, 1, 1, 1, 1), 3, 900, 3),  # which a peak ends
        (demands(1, 1, 2, 1, 1, 1, 1), 3, 900, 2),
        (demands(1, 1, 1, 1, 1, 1, 1), 3, 1400, 3),  # nor within five minutes of a change
    ],
)
def test_workers_are_added_at_once_and_taken_away_slowly(
    seen: list[Demand], wanted: int, changed_at: float, then: int
) -> None:
    assert wanted_workers(seen, BOUNDS, wanted=wanted, changed_at=changed_at) == then


@pytest.mark.parametrize(("wanted", "then"), [(0, 1), (6, 4)])
def test_bounds_hold_at_once(wanted: int, then: int) -> None:
    assert wanted_workers(demands(2), BOUNDS, wanted=wanted, changed_at=1000) == then


@pytest.mark.parametrize(
    ("text", "expected"), [("3", (3, 3)), ("1..4", (1, 4)), (" 2..2 ", (2, 2))]
)
def test_a_range_is_read_and_shown(text: str, expected: tuple[int, int]) -> None:
    found = WorkerRange.parse(text)
    assert found == expected
    assert WorkerRange.parse(str(found)) == found
    assert found.is_fixed is (expected[0] == expected[1])


@pytest.mark.parametrize("text", ["0", "0..3", "4..2", "..", "2..", "x", "-1", "1.5", "2...3", ""])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must"):
        WorkerRange.parse(text)
