"""The benchmarks of drafts: what of an answer can be copied, and what that gives."""

from collections import Counter

import pytest

from benchmarks.drafts.gains import DraftReplay, gain, replay
from benchmarks.drafts.workloads import OUTPUT_TOKENS, Trace, copied, counting, traces
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


def test_a_token_is_copied_if_it_followed_the_last_three_before() -> None:
    trace = Trace([1, 2, 3, 4, 5, 9, 1, 2, 3], [4, 6, 1, 2, 3, 4])
    assert copied(trace) == [True, False, None, None, None, True]


@pytest.mark.parametrize("workload", ["editing", "extraction", "random", "misled"])
def test_as_much_can_be_copied_by_a_model_that_counts(workload: str) -> None:
    [trace] = traces(workload, 1)
    found = copied(trace)
    counted = counting(found, prompt_tokens=len(trace.prompt), number=300)
    assert copied(counted) == found
    last = counted.prompt[-1]
    assert counted.output == list(range(last + 1, last + 1 + OUTPUT_TOKENS))
    assert len(counted.prompt) >= len(trace.prompt)


def test_a_replay_counts_the_steps_that_give_an_answer() -> None:
    copy = list(range(OUTPUT_TOKENS))
    done = replay([Trace([*copy, 500, *copy[:3]], copy[3:])], most=8)
    assert done.num_tokens == OUTPUT_TOKENS - 4  # the prompt's step has drawn the first
    assert done.run > 8
    done = replay(traces("misled", 1), most=8)
    assert done.run == 1 < done.mean_rows
    assert done.rows.total() == OUTPUT_TOKENS - 1


def test_a_gain_is_tokens_over_the_cost_of_the_steps() -> None:
    costs = {1: 10.0, 3: 14.0, 5: 18.0}
    assert gain(DraftReplay(num_tokens=40, rows=Counter({1: 4, 4: 10})), costs) == 2
    assert gain(DraftReplay(num_tokens=4, rows=Counter({1: 4})), costs) == 1
