"""Each attack with a clock, or three times over, or without its bound: `make test-alone`.

For a machine that does nothing else; `make test-system` leaves these tests out.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hostile.case import Case, Options
from tests.hostile.cases import all_cases
from tests.hostile.judge import check, check_memory, longest_gap_s
from tests.hostile.stack import HostileStack, hostile_stack

CASES = [case for case in all_cases() if not case.waits_for]
MAX_GAP_S = 0.25
"""Over what the same streams see on the idle machine."""
NUM_TRIES = 3

pytestmark = [pytest.mark.alone]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
def test_streams_go_on_beside_an_attack(
    case: Case, stack_of: Callable[[Options], HostileStack]
) -> None:
    stack = stack_of(case.options)
    gaps = []
    for _ in range(NUM_TRIES):
        idle = longest_gap_s(stack, None)
        gaps.append(longest_gap_s(stack, case) - idle)
        if gaps[-1] < MAX_GAP_S:
            return
    pytest.fail(f"the longest gaps beyond an idle machine's: {gaps} s")


@each_case
def test_repeats_leave_memory_as_it_is(
    case: Case, stack_of: Callable[[Options], HostileStack]
) -> None:
    check_memory(stack_of(case.options), case)


@pytest.mark.parametrize("case", [c for c in CASES if c.unbounded], ids=lambda case: case.name)
def test_without_its_bound_an_attack_is_noticed(case: Case, tmp_path: Path) -> None:
    constants = (*case.options.constants, *case.unbounded.items())
    unbounded = hostile_stack(tmp_path, replace(case.options, constants=constants))
    with unbounded as stack, pytest.raises((AssertionError, TimeoutError)):
        check(stack, case)
        check_memory(stack, case)
