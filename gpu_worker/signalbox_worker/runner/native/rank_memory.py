"""Memory through which the tensor-parallel ranks of a stage sum, without a name in any folder.

Rank 0 of the stage makes it, and says through the keys of the ranks where the others find it: as an
open file of its process. So it goes with the last process that maps it, however that ends.
"""

import os
from typing import NamedTuple

from signalbox_kernels.group import Group, group_bytes
from signalbox_kernels.structs import PANEL
from signalbox_worker.config import CacheConfig, ModelError
from signalbox_worker.device.keys import Keys
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.models.decoder_config import DecoderConfig

_MEET_S = 600.0
"""Seconds for rank 0 of the stage to open the model; one that is lost is noticed at once."""
_LEAST_ROWS = 16
"""Rows of logits that a slot holds at least."""


class _OpenFile(NamedTuple):
    """The memory as a file that a process has open: its descriptor there, and its inode."""

    pid: int
    file: int
    inode: int


def why_no_memory(parallel: ParallelConfig) -> str | None:
    """Says why ranks of a stage cannot share memory; None if they can."""
    if not parallel.is_stage_on_one_host:
        return "its tensor-parallel ranks are on several hosts"
    if not hasattr(os, "memfd_create"):
        return "this system has no anonymous files, in which tensor-parallel ranks sum"
    return None


def meet(
    parallel: ParallelConfig, keys: Keys, slot_bytes: int | None, *, why_not: str | None
) -> Group | str:
    """Meets the ranks of the stage; returns their group, or why PyTorch computes, on all ranks.

    Args:
        slot_bytes: most that a rank gives at once; None if it does not compute natively.
        why_not: what keeps this rank from that.

    Raises ModelError if rank 0 of the stage computes natively and this rank cannot.
    """
    key = f"stage {parallel.stage}/memory"
    if parallel.tensor_rank == 0:
        if slot_bytes is None:
            keys.set(key, b"")
            return why_not or ""
        return _made(parallel, keys, key, slot_bytes)
    place = keys.get(key, _MEET_S)
    if not place:
        return why_not or "rank 0 of the stage computes in PyTorch"
    if slot_bytes is None:
        raise ModelError(
            f"rank 0 of the stage computes natively and rank {parallel.rank} cannot: {why_not};"
            " set cpu_backend to 'torch'"
        )
    return _opened(parallel, _OpenFile(*map(int, place.split())), slot_bytes)


def slot_bytes_of(config: DecoderConfig, cache: CacheConfig, size: int) -> int:
    """Returns the bytes that hold the hidden states of a step, and some rows of logits."""
    hidden = -(-config.hidden_size // PANEL) * PANEL
    tokens = -(-config.vocab_size // size)
    return 4 * max(cache.num_batched_tokens("cpu") * hidden, _LEAST_ROWS * tokens)


def _made(parallel: ParallelConfig, keys: Keys, key: str, slot_bytes: int) -> Group:
    file = os.memfd_create("signalbox-sums")
    os.ftruncate(file, group_bytes(parallel.tensor_parallel_size, slot_bytes))
    place = _OpenFile(os.getpid(), file, os.fstat(file).st_ino)
    group = _group(parallel, file, slot_bytes)
    keys.set(key, " ".join(map(str, place)).encode())
    return group


def _opened(parallel: ParallelConfig, place: _OpenFile, slot_bytes: int) -> Group:
    path = f"/proc/{place.pid}/fd/{place.file}"
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise _unreachable(path, error.strerror or "cannot be opened") from None
    if os.fstat(file).st_ino != place.inode:  # that of another namespace of processes
        os.close(file)
        raise _unreachable(path, "another file")
    return _group(parallel, file, slot_bytes)


def _group(parallel: ParallelConfig, file: int, slot_bytes: int) -> Group:
    size = parallel.tensor_parallel_size
    return Group(file, rank=parallel.tensor_rank, size=size, slot_bytes=slot_bytes)


def _unreachable(path: str, reason: str) -> ModelError:
    return ModelError(
        f"the memory of rank 0 of the stage, {path}, cannot be shared ({reason}): run"
        " tensor-parallel ranks in one container, as one user, or set cpu_backend to 'torch'"
    )
