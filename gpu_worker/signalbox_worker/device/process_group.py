"""Joins a rank to its group: NCCL between CUDA devices, gloo between processes on a CPU.

The group is an object of ours, not torch.distributed's global one, so that a process may hold
several models, one after another or at once. Ranks meet through keys that rank 0 keeps, never
through PyTorch's own store, which checks no identity; they connect over the loopback
interface if they are on one host.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import distributed_c10d as c10d

from signalbox_worker.device.device_errors import DeviceLost
from signalbox_worker.device.interfaces import interface_of
from signalbox_worker.device.keys import Keys
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.parallel_group import ParallelGroup

TIMEOUT = timedelta(minutes=10)
"""Limit for a rank that is alive but does not join; the socket of a dead rank is noticed at
once."""
_LOOK_S = 0.01


class GroupCollectives:
    """Satisfies `Collectives`, and counts, so that ranks can tell whether they are at one place."""

    def __init__(self, backend: Any, size: int) -> None:
        self._backend = backend
        self._size = size
        self.num_joined = 0
        self.spent_ns = 0

    def all_reduce(self, tensor: Tensor) -> None:
        self._join(tensor, lambda: self._backend.allreduce([tensor]))

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self._size)]
        self._join(tensor, lambda: self._backend.allgather([parts], [tensor]))
        return parts

    def _join(self, tensor: Tensor, begin: Callable[[], Any]) -> None:
        self.num_joined += 1
        began_ns = time.perf_counter_ns()
        begin().wait()
        if tensor.device.type == "cpu":  # NCCL only enqueues, and returns
            self.spent_ns += time.perf_counter_ns() - began_ns

    def abort(self) -> None:
        """Makes the collectives that ranks wait in fail; safe from any thread."""
        self._backend.abort()


class _Store(distributed.Store):  # type: ignore[name-defined,misc]
    """Keys of one group as torch.distributed asks for them."""

    def __init__(self, keys: Keys, prefix: str) -> None:
        super().__init__()
        self._keys = keys
        self._prefix = prefix

    def set(self, key: str, value: Any) -> None:
        self._keys.set(self._prefix + key, bytes(value))

    def get(self, key: str) -> bytes:
        return self._keys.get(self._prefix + key, TIMEOUT.total_seconds())

    def wait(self, keys: list[str], timeout: timedelta = TIMEOUT) -> None:
        for key in keys:
            self._keys.get(self._prefix + key, timeout.total_seconds())


def join(config: ParallelConfig, device: torch.device, keys: Keys | None) -> ParallelGroup:
    """Returns when all ranks of a stage have joined; at size 1 at once.

    Args:
        keys: where the ranks meet.
    """
    size = config.tensor_parallel_size
    if size == 1:
        return ParallelGroup()
    if keys is None:
        raise ValueError(f"tensor_parallel_size is {size}, but the ranks have no place to meet at")
    store = _Store(keys, f"stage {config.stage}/")
    make = partial(_connect, store, config, device)
    return ParallelGroup(config.tensor_rank, size, _unless_lost(make, keys))


def _connect(store: Any, config: ParallelConfig, device: torch.device) -> GroupCollectives:
    make = _gloo
    if device.type == "cuda":
        torch.cuda.set_device(device)  # each thread has its own
        make = _nccl
    together = GroupCollectives(make(store, config), config.tensor_parallel_size)
    together.all_reduce(torch.zeros(1, device=device))  # NCCL connects when it is first used
    return together


def _unless_lost(connect: Callable[[], GroupCollectives], keys: Keys) -> GroupCollectives:
    """Connects on a thread that is left behind if a rank is lost: nothing else calls it off."""
    done: Future[GroupCollectives] = Future()

    def work() -> None:
        try:
            done.set_result(connect())
        except BaseException as error:  # the waiting thread decides
            done.set_exception(error)

    threading.Thread(target=work, name="joining", daemon=True).start()
    while not wait([done], timeout=_LOOK_S).done:
        if keys.lost is not None:
            raise DeviceLost(keys.lost)
    return done.result()


# PyTorch's stubs know neither how these are made nor what they have in common.


def _gloo(store: Any, config: ParallelConfig) -> Any:
    gloo: Any = c10d.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=config.collective_host)]
    options._timeout = TIMEOUT
    return gloo(store, config.tensor_rank, config.tensor_parallel_size, options)


def _nccl(store: Any, config: ParallelConfig) -> Any:
    if not c10d.is_nccl_available():
        raise ValueError("tensor_parallel_size needs NCCL, which this PyTorch is built without")
    if interface := interface_of(config.collective_host):  # no other machine may join by another
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    # Its monitor asks the store every second, for dumps that training wants; the store is gone.
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    nccl: Any = c10d.ProcessGroupNCCL
    options = nccl.Options()
    options._timeout = TIMEOUT
    return nccl(store, config.tensor_rank, config.tensor_parallel_size, options)
