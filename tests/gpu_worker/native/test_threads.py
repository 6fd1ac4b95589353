"""A native program runs on each core that its process may use, or on as many threads as told."""

import os
from pathlib import Path

import pytest

from gpu_worker.native.threads import default_num_threads


@pytest.fixture(autouse=True)
def _may_use_four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def make_topology(folder: Path, *siblings: str) -> Path:
    for cpu, text in enumerate(siblings):
        (folder / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
    return folder


def test_two_cpus_of_one_core_count_once(tmp_path: Path) -> None:
    assert default_num_threads(make_topology(tmp_path, "0,2", "1,3", "0,2", "1,3"), tmp_path) == 2


def test_cpus_of_cores_of_their_own_count_each(tmp_path: Path) -> None:
    assert default_num_threads(make_topology(tmp_path, "0", "1", "2", "3"), tmp_path) == 4


def test_a_system_that_names_no_cores_counts_cpus(tmp_path: Path) -> None:
    assert default_num_threads(tmp_path, tmp_path) == 4


@pytest.mark.parametrize(("told", "expected"), [("3", 3), ("5,2", 5), ("", 4), ("0", 4)])
def test_the_usual_variable_says_how_many(
    told: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert default_num_threads(tmp_path, tmp_path) == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("200000 100000", 2), ("150000 100000", 2), ("50000 100000", 1), ("max 100000", 4)],
)
def test_a_containers_cpu_time_is_a_limit(limit: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(f"{limit}\n")
    assert default_num_threads(tmp_path, tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("300000", 3), ("-1", 4)])
def test_so_it_is_in_the_first_version_of_groups(quota: str, expected: int, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert default_num_threads(tmp_path, tmp_path) == expected
