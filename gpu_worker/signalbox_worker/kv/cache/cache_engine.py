"""Owns the two pools of KV blocks, on the device and in RAM, and moves whole blocks.

Block-major, [num_blocks, block_bytes]: one block of all layers is one run of bytes, so that a move
is one copy a block and neighbours coalesce. What is inside a block is the attention backend's.

Blocks are swapped on a stream of their own, beside the forward pass. Work is enqueued in the order
of the step (out, in, copy, forward), and waits for that of the other stream which uses its blocks:
a swap-in is there before the step that reads it, and a swap-out has read before a step overwrites.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple
from weakref import finalize

import numpy as np
import torch
from torch import Tensor

from signalbox_contract.sections.block_moves import BlockMapping
from signalbox_contract.step import Step
from signalbox_kernels import ops
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.device.spans import span
from signalbox_worker.device.streams import Event, Stream, Streams
from signalbox_worker.kv.cache.block_dependencies import BlockUse, WorkUnderWay
from signalbox_worker.kv.cache.host_pool import SwapMemory
from signalbox_worker.kv.cache.pools import Pools

_NONE: Int64Array = np.empty(0, dtype=np.int64)


class CacheEngine(Pools):
    """Both pools, zeroed at first. Pageable RAM is not taken before it is written to."""

    def __init__(
        self,
        *,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        block_bytes: int,
        device: torch.device,
        streams: Streams | None = None,
    ) -> None:
        if num_gpu_blocks < 1:
            raise ValueError("a KV cache needs at least one block")
        streams = streams or streams_of(device)
        self.gpu_pool = _zeroed_pool(num_gpu_blocks, block_bytes, device)
        self._swap_memory = SwapMemory(
            num_blocks=num_cpu_blocks, block_bytes=block_bytes, streams=streams
        )
        self.cpu_pool = self._swap_memory.pool
        self._compute, self._copying = streams.compute, streams.new()
        self._copying.wait(self._compute.record())  # the zeroes come before any block
        self._computed = WorkUnderWay(num_blocks=num_gpu_blocks)
        self._copied = WorkUnderWay(num_blocks=num_gpu_blocks)
        self._clock = CopyClock()
        # Pages that are unmapped while they are pinned could not be pinned again at their address.
        self._closing = finalize(self, _end, self._copying, self._compute, self._swap_memory)
        self._closing.atexit = False  # the system does it, and CUDA may be gone by then

    @property
    def gpu_bytes(self) -> int:
        return self.gpu_pool.nbytes

    @property
    def cpu_bytes(self) -> int:
        return self.cpu_pool.nbytes

    def apply(self, sections: Step) -> int:
        start, moves = time.monotonic_ns(), sections.block_moves
        for name, move, mapping in (
            ("swap_out", self.swap_out, moves.swap_out),
            ("swap_in", self.swap_in, moves.swap_in),
            ("copy_blocks", self.copy, moves.copy),
        ):
            if len(mapping.src):
                with span(name):
                    move(mapping)
        called_ns = time.monotonic_ns() - start
        return called_ns + self.pop_copy_ns()

    def swap_out(self, mapping: BlockMapping) -> None:
        """Copies blocks from the GPU pool to the CPU pool."""
        use = BlockUse(reads=_indexes(mapping.src), writes=_NONE)
        self._swap(self.gpu_pool, self.cpu_pool, mapping, use)

    def swap_in(self, mapping: BlockMapping) -> None:
        """Copies blocks from the CPU pool to the GPU pool."""
        use = BlockUse(reads=_NONE, writes=_indexes(mapping.dst))
        self._swap(self.cpu_pool, self.gpu_pool, mapping, use)

    def copy(self, mapping: BlockMapping) -> None:
        """Copies blocks within the GPU pool, where models compute."""
        src, dst = _indexes(mapping.src), _indexes(mapping.dst)
        with self.computing(lambda: BlockUse(reads=src, writes=dst)):
            self._compute.run(lambda: ops.copy_blocks(self.gpu_pool, *_tensors(src, dst)))

    @contextmanager
    def computing(self, use: Callable[[], BlockUse]) -> Iterator[None]:
        """Holds work that is enqueued within it behind the swaps of its blocks, and marks its end.

        `use` is called if swaps are under way, maybe later: what it looks at must not change.
        """
        use = cache(use)
        if not self._copied.is_idle and (event := self._copied.conflict(use())):
            self._compute.wait(event)
        try:
            yield
        finally:  # work that raises half-way may have been enqueued
            self._computed.add(self._compute.record(), use)

    def pop_copy_ns(self) -> int:
        """Returns how long the swaps since the last call take beside the calls themselves."""
        return self._clock.pop_ns()

    def cpu_block(self, index: int) -> memoryview:
        return self.cpu_pool[index].numpy().data

    def copies_begun(self) -> Callable[[], None]:
        return self._copying.record().wait

    def close(self) -> None:
        """An engine that is not closed does so when it is deleted."""
        self._closing()

    def _swap(
        self, src_pool: Tensor, dst_pool: Tensor, mapping: BlockMapping, use: BlockUse
    ) -> None:
        src, dst = _indexes(mapping.src), _indexes(mapping.dst)
        if not len(src):
            return
        if event := self._computed.conflict(use):
            self._copying.wait(event)
        begin = self._copying.record(is_timed=True)
        self._copying.run(lambda: ops.swap_blocks(src_pool, dst_pool, *_tensors(src, dst)))
        # After the copies are enqueued, or it would mean nothing.
        end = self._copying.record(is_timed=True)
        self._copied.add(end, lambda: use)
        self._clock.add(begin, end, num_bytes=len(src) * self.gpu_pool.shape[1])


def _end(copying: Stream, compute: Stream, swap_memory: SwapMemory) -> None:
    copying.record().wait()
    compute.record().wait()
    swap_memory.close()


def _indexes(blocks: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Int64Array:
    return blocks.astype(np.int64)


def _tensors(*arrays: Int64Array) -> list[Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def _zeroed_pool(num_blocks: int, block_bytes: int, device: torch.device) -> Tensor:
    if device.type == "cpu":  # NumPy's zeros are the operating system's: pages come when written
        return torch.from_numpy(np.zeros((num_blocks, block_bytes), dtype=np.uint8))
    return torch.zeros(num_blocks, block_bytes, dtype=torch.uint8, device=device)


class _Copy(NamedTuple):
    begin: Event
    end: Event
    num_bytes: int


class CopyClock:
    """Times the copies of one stream, for the choice between swap and recompute.

    A step is answered before its copies may have ended: those under way are counted by the rate of
    the last that have; only the very first are waited for.
    """

    def __init__(self) -> None:
        self._under_way: deque[_Copy] = deque()
        self._ns_per_byte: float | None = None
        self._new_bytes = 0

    def add(self, begin: Event, end: Event, *, num_bytes: int) -> None:
        """Records a copy between two events; one that is done already counts in its call's time."""
        if not end.is_done:
            self._under_way.append(_Copy(begin, end, num_bytes))
            self._new_bytes += num_bytes

    def pop_ns(self) -> int:
        """Returns the nanoseconds of the copies recorded since the last call."""
        if self._under_way and self._ns_per_byte is None:
            self._under_way[0].end.wait()
        while self._under_way and self._under_way[0].end.is_done:
            done = self._under_way.popleft()
            self._ns_per_byte = done.end.ns_since(done.begin) / done.num_bytes
        num_bytes, self._new_bytes = self._new_bytes, 0
        return round(num_bytes * (self._ns_per_byte or 0.0))
