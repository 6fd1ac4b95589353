"""Tensor-parallel ranks find the memory of their stage, or compute elsewhere together."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from signalbox_kernels.group import Group
from signalbox_worker.config import CacheConfig, ModelError
from signalbox_worker.device.parallel_config import LOOPBACK, ParallelConfig
from signalbox_worker.runner.native.rank_memory import meet, slot_bytes_of, why_no_memory
from signalbox_worker.runner.ranks.service.rank_servicer import Meeting
from tests.gpu_worker.runner.native.test_weights import make_config
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

SLOT_BYTES = 4096


def rank(number: int, **more: object) -> ParallelConfig:
    return ParallelConfig(rank=number, tensor_parallel_size=2, **more)  # type: ignore[arg-type]


def anonymous_files() -> list[str]:
    found = []
    for one in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # a thread of another test has closed it meanwhile
            found.append(one.readlink().name)
    return [name for name in found if "signalbox-sums" in name]


@pytest.fixture(autouse=True)
def leaves_no_file() -> Iterator[None]:
    assert not anonymous_files()
    yield
    assert not anonymous_files()


def test_ranks_of_a_stage_meet_in_memory_without_a_name() -> None:
    keys = Meeting()
    stages = [
        ParallelConfig(rank=n, tensor_parallel_size=2, pipeline_parallel_size=2) for n in range(4)
    ]
    groups = [meet(one, keys, SLOT_BYTES, why_not=None) for one in stages]
    assert all(isinstance(group, Group) for group in groups)
    assert [(one.rank, one.size) for one in groups if isinstance(one, Group)] == 2 * [
        (0, 2),
        (1, 2),
    ]
    files = set(anonymous_files())
    assert {"memfd:signalbox-sums (deleted)"} == files


def test_ranks_follow_the_first_one_to_pytorch() -> None:
    keys = Meeting()
    assert meet(rank(0), keys, None, why_not="it has no program") == "it has no program"
    assert meet(rank(1), keys, None, why_not="it has no program") == "it has no program"
    found = meet(rank(1), keys, SLOT_BYTES, why_not=None)
    assert found == "rank 0 of the stage computes in PyTorch"


def test_a_rank_that_cannot_follow_the_first_one_is_refused() -> None:
    keys = Meeting()
    group = meet(rank(0), keys, SLOT_BYTES, why_not=None)
    with pytest.raises(ModelError, match=r"rank 1 cannot: no compiler; .* to 'torch'"):
        meet(rank(1), keys, None, why_not="no compiler")
    del group


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda pid, file, inode: (pid, file, inode + 1), "another file"),
        (lambda pid, file, inode: (pid, 9999, inode), "No such file"),
    ],
)
def test_memory_of_another_namespace_is_refused(
    spoil: Callable[[int, int, int], tuple[int, ...]], reason: str
) -> None:
    keys = Meeting()
    group = meet(rank(0), keys, SLOT_BYTES, why_not=None)
    key = "stage 0/memory"
    place = spoil(*map(int, keys.get(key, 0).split()))
    keys.set(key, " ".join(map(str, place)).encode())
    with pytest.raises(ModelError, match=rf"cannot be shared \({reason}.*in one container"):
        meet(rank(1), keys, SLOT_BYTES, why_not=None)
    del group


def test_ranks_on_several_hosts_share_no_memory() -> None:
    assert why_no_memory(rank(0, collective_host=LOOPBACK)) is None
    reason = why_no_memory(rank(0, collective_host="10.0.0.1"))
    assert reason == "its tensor-parallel ranks are on several hosts"


def test_a_slot_holds_a_step_and_some_logits() -> None:
    config, cache = make_config(), CacheConfig(max_num_batched_tokens=512)
    assert slot_bytes_of(config, cache, 2) == 4 * 512 * 32
    assert slot_bytes_of(make_config(vocab_size=1 << 20), cache, 2) == 4 * 16 * (1 << 19)
