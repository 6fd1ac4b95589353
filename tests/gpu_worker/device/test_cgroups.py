"""Limits are those of the process's own control group and of the groups around it."""

import resource
from collections import defaultdict
from pathlib import Path

import pytest

from signalbox_worker.device import cgroups, ram


def write(folder: Path, **files: str) -> None:
    """Writes files; `_` stands for the first point of a name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


@pytest.fixture
def mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mount without groups, of a process in the group /a/b of both versions."""
    monkeypatch.setattr(cgroups, "_MOUNT", tmp_path / "mount")
    monkeypatch.setattr(cgroups, "_OWN", tmp_path / "own")
    (tmp_path / "own").write_text("3:memory:/a/b\n2:cpu,cpuacct:/a/b\n1:name=x:/y\n0::/a/b\n")
    return tmp_path / "mount"


@pytest.mark.parametrize("group", ["", "a", "a/b"])
def test_a_limit_counts_with_what_is_used_and_what_can_be_dropped(mount: Path, group: str) -> None:
    stat = "anon 1\ninactive_file 50\n"
    write(mount / "a", memory_max="max\n", memory_current="900\n", memory_stat=stat)
    write(mount / group, memory_max="1000\n", memory_current="300\n", memory_stat=stat)
    assert cgroups.memory_limit() == 1000
    assert cgroups.memory_left() == ram.available_ram() == 750


@pytest.mark.parametrize("group", ["", "a", "a/b"])
def test_so_it_does_in_the_first_version_of_groups(mount: Path, group: str) -> None:
    files = {"memory_usage_in_bytes": "300\n", "memory_stat": "total_inactive_file 50\n"}
    write(mount / "memory", memory_limit_in_bytes="9223372036854771712\n", **files)  # none
    assert cgroups.memory_limit() is cgroups.memory_left() is None
    write(mount / "memory" / group, memory_limit_in_bytes="1000\n", **files)
    assert (cgroups.memory_limit(), cgroups.memory_left()) == (1000, 750)


def test_the_least_limit_around_a_process_counts(mount: Path) -> None:
    write(mount / "a", cpu_max="300000 100000\n")
    write(mount / "a/b", cpu_max="150000 100000\n")
    write(mount / "c", cpu_max="50000 100000\n")  # of others
    assert cgroups.cpu_quota() == 1.5
    write(mount / "a", cpu_max="100000 100000\n")
    assert cgroups.cpu_quota() == 1
    write(mount / "cpu/a", cpu_cfs_quota_us="50000\n", cpu_cfs_period_us="100000\n")
    assert cgroups.cpu_quota() == 0.5


def test_a_group_outside_of_the_mount_is_not_sought(mount: Path, tmp_path: Path) -> None:
    write(tmp_path / "outside", cpu_max="50000 100000\n")
    (tmp_path / "own").write_text("0::/../outside\n")
    assert cgroups.cpu_quota() is None


def test_without_limits_the_machine_counts(mount: Path, tmp_path: Path) -> None:
    write(mount, cpu_max="max 100000\n", memory_max="max\n", memory_current="300\n")
    write(mount / "cpu", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    (tmp_path / "own").unlink()
    assert cgroups.cpu_quota() is cgroups.memory_limit() is None
    assert ram.available_ram() > 1 << 20


def test_mapped_files_are_in_use_and_limits_of_the_process_count(
    mount: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = "RssFile: 30 kB\nVmSize: 50 kB\nVmData: 10 kB\n"
    for name, lines in (("_MEMORY", "MemAvailable: 100 kB\n"), ("_STATUS", status)):
        (tmp_path / name).write_text(lines)
        monkeypatch.setattr(ram, name, tmp_path / name)
    assert ram.available_ram() == 70 << 10
    monkeypatch.setattr(ram, "_droppable_bytes", 0)
    ram.let_drop(20 << 10)
    assert ram.available_ram() == 90 << 10
    ram.let_drop(20 << 10)
    assert ram.available_ram() == 100 << 10  # no more than is mapped
    monkeypatch.setattr(ram, "_droppable_bytes", 0)
    for left, limits in ((40, {resource.RLIMIT_AS: 90}), (9, {resource.RLIMIT_DATA: 19})):
        soft: dict[int, int] = defaultdict(lambda: resource.RLIM_INFINITY)
        soft |= {limit: kib << 10 for limit, kib in limits.items()}
        monkeypatch.setattr(resource, "getrlimit", lambda limit, soft=soft: (soft[limit], 0))
        assert ram.available_ram() == left << 10
