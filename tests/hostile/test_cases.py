"""Each attack once beside eight streams: what holds on any machine, in counts, codes and bytes."""

from collections.abc import Callable

import pytest

from tests.hostile.case import Case, Options
from tests.hostile.cases import all_cases
from tests.hostile.judge import check
from tests.hostile.stack import HostileStack

pytestmark = pytest.mark.xdist_group("hostile")  # the stacks


def marks_of(case: Case) -> list[pytest.MarkDecorator]:
    marks = [pytest.mark.alone] if case.is_long else []
    if case.waits_for:
        marks.append(pytest.mark.xfail(strict=True, reason=case.waits_for))
    return marks


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=marks_of(case)) for case in all_cases()]
)
def test_nobody_notices_an_attack(case: Case, stack_of: Callable[[Options], HostileStack]) -> None:
    check(stack_of(case.options), case)
