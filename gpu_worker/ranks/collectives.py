"""Joins a rank to its group: NCCL between CUDA devices, gloo between processes on a CPU.

The group is an object of ours, not torch.distributed's global one, so that a process may hold
several models, one after another or at once. Ranks meet through a file in a folder that only this
user can enter; they connect over the loopback interface.
"""

import os
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d as c10d

from gpu_worker.config import ParallelConfig
from gpu_worker.layers import ParallelGroup

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(minutes=10)
"""For a rank that is alive and does not come; one that dies is noticed at once, by its socket."""


class GroupCollectives:
    """Satisfies `Collectives`, and counts, so that ranks can tell whether they are at one place."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend = backend
        self._size = size
        self.num_joined = 0

    def all_reduce(self, tensor: Tensor) -> None:
        self.num_joined += 1
        self._backend.allreduce([tensor]).wait()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        self.num_joined += 1
        parts = [torch.empty_like(tensor) for _ in range(self._size)]
        self._backend.allgather([parts], [tensor]).wait()
        return parts

    def abort(self) -> None:
        """Lets whoever waits in a collective go, with an error; on any thread."""
        self._backend.abort()


def join(config: ParallelConfig, device: torch.device) -> ParallelGroup:
    """Returns when all ranks are here; at size 1 at once."""
    size = config.tensor_parallel_size
    if size == 1:
        return ParallelGroup()
    if config.rendezvous is None:
        raise ValueError(f"tensor_parallel_size is {size}, but the ranks have nowhere to meet")
    store = distributed.FileStore(config.rendezvous, size)  # type: ignore[attr-defined]
    make = _nccl if device.type == "cuda" else _gloo
    together = GroupCollectives(make(store, config.rank, size), size)
    together.all_reduce(torch.zeros(1, device=device))  # NCCL connects when it is first used
    return ParallelGroup(config.rank, size, together)


# PyTorch's stubs know neither how these are made nor what they have in common.


def _gloo(store: Any, rank: int, size: int) -> Any:
    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=LOOPBACK)]
    options._timeout = TIMEOUT
    return gloo(store, rank, size, options)


def _nccl(store: Any, rank: int, size: int) -> Any:
    if not c10d.is_nccl_available():
        raise ValueError("tensor_parallel_size needs NCCL, which this PyTorch is built without")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")  # nobody else is to join
    nccl: Any = c10d.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = TIMEOUT
    return nccl(store, rank, size, options)
