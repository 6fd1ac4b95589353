"""Every planted fault stands where it can be planted, and has its test.

`make test-faults` plants them.
"""

from pathlib import Path

from tests.planted_faults.table import ROOT, Edit, Fault, read_faults

FAULT = Fault(
    name="one",
    what="Two is told for one.",
    mended="tests: tell one",
    test="tests/planted_faults/test_table.py::test_a_fault_is_there_within_the_block_alone",
    edits=(Edit("one.py", "    return 1\n", "    return 2\n"),),
)


def test_each_fault_can_be_planted_and_has_its_test() -> None:
    found = {fault.name: fault.find_obstacle(ROOT) for fault in read_faults()}
    assert {name: obstacle for name, obstacle in found.items() if obstacle} == {}


def test_a_fault_is_there_within_the_block_alone(tmp_path: Path) -> None:
    file, source = tmp_path / "one.py", "def one():\n    return 1\n"
    file.write_text(source)
    before = file.stat().st_mtime_ns
    with FAULT.planted(tmp_path):
        assert file.read_text() == "def one():\n    return 2\n"
        assert FAULT.find_obstacle(tmp_path) == "its text stands 0 times in one.py, and not once"
    assert (file.read_text(), file.stat().st_mtime_ns) == (source, before)
    assert FAULT.find_obstacle(tmp_path) == f"there is no test {FAULT.test}"
