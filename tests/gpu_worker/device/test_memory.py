"""Free memory is what the container has left, whichever version its cgroups are."""

from pathlib import Path

import pytest
import torch

from gpu_worker.device import memory, ram

V2 = {"max": "memory.max", "used": "memory.current", "stat": "memory.stat"}
V1 = {
    "max": "memory/memory.limit_in_bytes",
    "used": "memory/memory.usage_in_bytes",
    "stat": "memory/memory.stat",
}


def make_cgroup(folder: Path, names: dict[str, str], **content: str) -> None:
    for key, text in content.items():
        path = folder / names[key]
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("names", "stat"), [(V2, "inactive_file 50\n"), (V1, "total_inactive_file 50\n")]
)
def test_a_limit_counts_with_what_is_used_and_what_can_be_dropped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, names: dict[str, str], stat: str
) -> None:
    make_cgroup(tmp_path, names, max="1000\n", used="300\n", stat=f"anon 1\n{stat}")
    monkeypatch.setattr(ram, "_CGROUP", tmp_path)
    assert ram.available_ram() == 750


def test_without_a_limit_the_machine_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_cgroup(tmp_path, V2, max="max\n", used="300\n", stat="inactive_file 0\n")
    monkeypatch.setattr(ram, "_CGROUP", tmp_path)
    assert ram.available_ram() > 1 << 20


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you ..."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
    ids=str,
)
def test_every_way_to_find_no_memory_is_known(error: RuntimeError, is_memory: bool) -> None:
    assert memory.is_out_of_memory(error) is is_memory
