"""How many tokens a draft model catches up in a step, by the times of a made-up clock."""

import pytest

from signalbox_worker.runner.draft_model.catch_up import CatchUpBudget

MS = 1_000_000


def make_budget() -> CatchUpBudget:
    """Builds the budget of a draft model that computes a token in a tenth of a millisecond."""
    return CatchUpBudget(tokens_per_s=10_000, most_tokens=500)


def run_steps(budget: CatchUpBudget, *lengths_ms: int) -> int:
    """Returns the budget behind steps of these lengths."""
    now = 7
    budget.begin_step(now)
    for length in lengths_ms:
        budget.end_step(now)
        now += length * MS
        budget.begin_step(now)
    return budget.tokens


@pytest.mark.parametrize(
    ("lengths_ms", "tokens"),
    [
        ((), 16),  # nothing is known of steps
        ((20,), 100),  # half of the time
        ((1,), 16),  # at least
        ((1000,), 500),  # at most what memory was measured for
        ((20, 1000), 200),  # a pause counts as two steps
        ((20, 1000, 20), 100),
    ],
)
def test_catching_up_takes_half_of_the_time_of_the_rest(
    lengths_ms: tuple[int, ...], tokens: int
) -> None:
    assert run_steps(make_budget(), *lengths_ms) == tokens


def test_the_rate_is_that_of_longer_batches() -> None:
    budget = make_budget()
    for _ in range(50):
        budget.observe(num_tokens=100, ns=100 * MS)
        budget.observe(num_tokens=1, ns=100 * MS)
    assert run_steps(budget, 200) == 100
