"""Moves the arrays of a step to the device: packed, one asynchronous copy out of pinned memory.

A copy out of pageable memory would wait for what the device computes, once for each array. Pinned
memory may be written again when its copy is done; there are as many buffers as two steps send, so
that the next step is packed while the copies of this one have yet to begin.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_worker.batch.batch import Batch
from signalbox_worker.device.streams import Event, Stream

NUM_BUFFERS = 24
_ALIGNMENT = 16  # bytes; what kernels load at once


class StepInputs(NamedTuple):
    """A batch on the device, shaped as `Batch` says; int64 but for block_tables."""

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start: Tensor
    context_lens: Tensor
    block_tables: Tensor
    """int32; may have more columns than the batch's."""
    most_queries: int
    """Upper bound on the tokens that a sequence computes, for all batches that may be here."""


class PinnedBuffers:
    """Buffers of host memory, used in turn, for copies to one device. Call from one thread."""

    def __init__(self, device: torch.device, compute: Stream) -> None:
        self._is_pinned = device.type == "cuda"
        self._compute = compute
        self._buffers = [self._make(0) for _ in range(NUM_BUFFERS)]
        self._sent: list[Event | None] = [None] * NUM_BUFFERS
        self._turn = 0

    def next_buffer(self, num_bytes: int) -> Tensor:
        """Returns [num_bytes] uint8 to write to; its earlier copy is complete."""
        self._turn = (self._turn + 1) % NUM_BUFFERS
        if (sent := self._sent[self._turn]) is not None:
            sent.wait()
        if num_bytes > len(self._buffers[self._turn]):
            self._buffers[self._turn] = self._make(2 * num_bytes)
        return self._buffers[self._turn][:num_bytes]

    def send(self, host: Tensor, target: Tensor) -> None:
        """Enqueues the copy of what `next_buffer` has returned."""
        target.copy_(host, non_blocking=True)
        self._sent[self._turn] = self._compute.record()

    def _make(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=self._is_pinned)


class InputPacker:
    """Sends arrays of any sizes to new memory of the device."""

    def __init__(self, device: torch.device, pinned: PinnedBuffers) -> None:
        self._device = device
        self._pinned = pinned

    def batch(self, batch: Batch) -> StepInputs:
        """Sends what the forward pass reads."""
        token_ids, positions, slot_mapping, query_start, context_lens, block_tables = self.send(
            [
                batch.token_ids,
                batch.positions,
                batch.slot_mapping,
                batch.query_start,
                batch.context_lens,
                batch.block_tables,
            ]
        )
        return StepInputs(
            token_ids=token_ids,
            positions=positions,
            slot_mapping=slot_mapping,
            query_start=query_start,
            context_lens=context_lens,
            block_tables=block_tables,
            most_queries=batch.most_queries,
        )

    def send(self, arrays: Sequence[NDArray[np.generic]]) -> list[Tensor]:
        """Returns a tensor of the device for each array; they share memory."""
        ends = np.cumsum([-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays])
        starts = [0, *ends[:-1].tolist()]
        host = self._pinned.next_buffer(int(ends[-1]))
        for array, start in zip(arrays, starts, strict=True):
            _view(host, start, array).copy_(torch.from_numpy(np.ascontiguousarray(array)))
        packed = torch.empty(len(host), dtype=torch.uint8, device=self._device)
        self._pinned.send(host, packed)
        return [_view(packed, start, array) for array, start in zip(arrays, starts, strict=True)]


def _view(packed: Tensor, start: int, like: NDArray[np.generic]) -> Tensor:
    dtype = torch.from_numpy(np.empty(0, dtype=like.dtype)).dtype
    return packed[start : start + like.nbytes].view(dtype).view(like.shape)
