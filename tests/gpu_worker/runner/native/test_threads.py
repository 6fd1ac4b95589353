"""A native program runs on each core that its process may use, or on as many threads as told."""

import os
from pathlib import Path

import pytest

from signalbox_worker.runner.native import threads
from signalbox_worker.runner.native.threads import default_num_threads


@pytest.fixture(autouse=True)
def _may_use_four_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "cpu_quota", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})


def make_topology(folder: Path, *siblings: str) -> Path:
    for cpu, text in enumerate(siblings):
        (folder / f"cpu{cpu}" / "topology").mkdir(parents=True)
        (folder / f"cpu{cpu}" / "topology" / "thread_siblings_list").write_text(f"{text}\n")
    return folder


def test_two_cpus_of_one_core_count_once(tmp_path: Path) -> None:
    assert default_num_threads(make_topology(tmp_path, "0,2", "1,3", "0,2", "1,3")) == 2


def test_cpus_of_cores_of_their_own_count_each(tmp_path: Path) -> None:
    assert default_num_threads(make_topology(tmp_path, "0", "1", "2", "3")) == 4


def test_a_system_that_names_no_cores_counts_cpus(tmp_path: Path) -> None:
    assert default_num_threads(tmp_path) == 4


@pytest.mark.parametrize(("told", "expected"), [("3", 3), ("5,2", 5), ("", 4), ("0", 4)])
def test_the_usual_variable_says_how_many(
    told: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert default_num_threads(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [(2.0, 2), (1.5, 2), (0.5, 1), (8.0, 4), (None, 4)])
def test_a_limit_of_cpu_time_counts(
    quota: float | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "cpu_quota", lambda: quota)
    assert default_num_threads(tmp_path) == expected
