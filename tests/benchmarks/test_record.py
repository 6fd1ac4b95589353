"""What a benchmark prints is kept with all that it needs to be repeated."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.comparison.results import as_typed


@pytest.mark.parametrize("argument, is_kept", [("--help", True), ("--no-such-flag", False)])
def test_what_is_printed_is_kept_if_the_benchmark_succeeds(
    tmp_path: Path, argument: str, is_kept: bool
) -> None:
    command = ["benchmarks.record", "--output", str(tmp_path), "drain", argument]
    ran = subprocess.run([sys.executable, "-m", *command], capture_output=True, check=False)
    assert (ran.returncode == 0) is is_kept
    assert [path.name for path in tmp_path.iterdir()] == ["drain.md"] * is_kept
    if is_kept:
        head, _, printed = (tmp_path / "drain.md").read_text().partition("\n\n")
        form = r"\d+ cores of .*; version \S+, \d{4}-\d\d-\d\d: `python -m benchmarks.drain --help`"
        assert re.fullmatch(form, head)
        assert printed.startswith("usage:")


def test_every_figure_that_is_shown_has_its_file() -> None:
    readme = Path(__file__).parents[2] / "benchmarks/README.md"
    linked = re.findall(r"\((results/[^)#\s]+)", readme.read_text(encoding="utf-8"))
    assert linked
    assert [path for path in linked if not (readme.parent / path).is_file()] == []


def test_a_command_names_no_folder_of_a_machine() -> None:
    assert (
        as_typed(["-m", "x", "--peers", "/a/peers", "b/c d"]) == "python -m x --peers peers 'b/c d'"
    )
