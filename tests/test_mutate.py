"""scripts/mutate.py makes changes of each kind, and none that tests need not notice."""

import ast
from pathlib import Path

import pytest

from scripts.mutate import mirroring_tests, mutants_of

SOURCE = '''\
"""Has 1 text."""

def act(number: int = 1) -> int:
    """Adds 1."""
    if number < 2 and not is_late("ä"):
        number += 3
        logger.info("acts %d", 4)
        note(number)
    assert number > 5, f"{number + 6}"
    self.last = number
    return number
'''
CHANGES = {
    "def act(number: int = (2)) -> int:",
    'if (number <= 2) and not is_late("ä"):',
    'if number < (3) and not is_late("ä"):',
    "if (number < 2 or not is_late('ä')):",
    "if (not (number < 2 and (not is_late('ä')))):",
    "if number < 2 and (is_late('ä')):",
    "number += (4)",
    "pass",
    "return None",
}


def test_changes_are_of_each_kind_and_leave_texts_logs_and_invariants_alone() -> None:
    original, changed = SOURCE.splitlines(), list[str]()
    for mutant in mutants_of(SOURCE.encode()):
        lines = mutant.source(SOURCE.encode()).decode().splitlines()
        ast.parse("\n".join(lines))
        (different,) = (new for new, old in zip(lines, original, strict=True) if new != old)
        changed.append(different.strip())
    assert set(changed) == CHANGES
    assert changed.count("pass") == 3  # the sum, the call and the attribute


def test_a_module_is_tested_by_the_folder_that_mirrors_its_own() -> None:
    found = mirroring_tests(Path("scheduler_svc/signalbox_scheduler/kv/cost_model.py"))
    assert "tests/scheduler_svc/kv/test_cost_model.py" in found
    assert found[-1] == "tests/scheduler_svc/service/replay/test_recordings.py"
    with pytest.raises(SystemExit, match="no folder of tests/ mirrors that of elsewhere"):
        mirroring_tests(Path("elsewhere/module.py"))
