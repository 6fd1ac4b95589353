"""Two trees are compared by what their benchmarks print of CPU."""

import subprocess
import sys
from pathlib import Path

from benchmarks import serving
from benchmarks.cpu_per_token import read_table

ROOT = Path(__file__).parents[2]


def test_a_tree_beside_itself_has_a_row_for_each_load() -> None:
    trees = [str(ROOT), str(ROOT), "no-model"]
    options = ["--only", "control_plane", "--rounds", "1", "--shrink"]
    command = [sys.executable, "-m", "benchmarks.cpu_per_token", *trees, *options]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    _, _, *rows = ran.stdout.splitlines()
    loads = [row.split(" | ")[:3] for row in rows]
    assert loads == [
        ["| control_plane", f"32 {beside}", "µs CPU/token"]
        for beside in ("nothing", "prompts", "turnover")
    ]


def test_cpu_of_each_service_is_read_by_concurrency() -> None:
    row = "| 8 | 100.0 | 1 / 2 | 3 / 4 | 0.125 | 0.250 | 5.00 | 7.5% | 1.0% |"
    found = dict(read_table("serving", f"start: 1 s\n\n{serving.HEADER}\n{row}\n\nresident"))
    assert {title.split()[0]: value for (_, _, title), value in found.items()} == {
        "router": 0.125,
        "scheduler": 0.25,
        "worker": 5.0,
    }
    assert {load for _, load, _ in found} == {"8"}
