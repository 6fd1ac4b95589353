"""The inputs of decode steps, in device memory that never moves, so that graphs may read it.

A step of n sequences fills the first n rows of each column, with one copy from pinned memory. A
graph serves n sequences or fewer: the rows past those of the batch are padding, which stores
nothing (its slot is negative), reads one slot of block 0, and is never looked at.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.batch.batch import Batch
from gpu_worker.device.input_transfer import PinnedBuffers, StepInputs

_COLUMNS = ("token_ids", "positions", "slot_mapping", "context_lens", "fed_from")
_PADDING = (0, 0, -1, 1, -1)
_INT64 = 8  # bytes


class DecodeBuffers:
    """Columns of `max_rows`, and their block tables."""

    def __init__(
        self, *, max_rows: int, max_blocks: int, device: torch.device, pinned: PinnedBuffers
    ) -> None:
        self._column_size = max_rows + max_rows % 2  # aligns columns to 16 bytes
        self._pinned = pinned
        self._columns_bytes = len(_COLUMNS) * self._column_size * _INT64
        table_bytes = max_rows * max_blocks * np.dtype(np.int32).itemsize
        self._packed = torch.zeros(
            self._columns_bytes + table_bytes, dtype=torch.uint8, device=device
        )
        columns = self._packed[: self._columns_bytes].view(torch.int64)
        self._columns = columns.view(len(_COLUMNS), -1)
        self._packed_tables = self._packed[self._columns_bytes :].view(torch.int32)
        self._tables = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self._query_start = torch.arange(max_rows + 1, device=device)

        self.pad()

    @property
    def max_blocks(self) -> int:
        return self._tables.shape[1]

    def inputs(self, num_rows: int) -> StepInputs:
        """Returns the inputs of a step of `num_rows`, padding included."""
        columns = dict(zip(_COLUMNS, self._columns[:, :num_rows], strict=True))
        return StepInputs(
            token_ids=columns["token_ids"],
            positions=columns["positions"],
            slot_mapping=columns["slot_mapping"],
            query_start=self._query_start[: num_rows + 1],
            context_lens=columns["context_lens"],
            block_tables=self._tables[:num_rows],
        )

    def fed_from(self, num_rows: int) -> Tensor:
        """Returns [num_rows]: the draw of the step before that is the token; negative: none is."""
        return self._columns[-1, :num_rows]

    def pad(self) -> None:
        """Makes all rows padding, for runs without a batch."""
        for column, padding in zip(self._columns, _PADDING, strict=True):
            column.fill_(padding)
        self._tables.zero_()

    def fill(self, batch: Batch, num_rows: int) -> None:
        """Enqueues the copy of a batch of at most `num_rows` sequences with one token each."""
        width = batch.block_tables.shape[1]
        num_bytes = self._columns_bytes + batch.block_tables.size * batch.block_tables.itemsize
        host = self._pinned.next_buffer(num_bytes)
        packed = host.numpy()
        columns = packed[: self._columns_bytes].view(np.int64).reshape(-1, self._column_size)
        self._fill_columns(columns[:, :num_rows], batch)
        packed[self._columns_bytes :].view(np.int32)[:] = batch.block_tables.reshape(-1)
        self._pinned.send(host, self._packed[:num_bytes])
        num_seqs = len(batch.context_lens)
        tables = self._packed_tables[: num_seqs * width].view(num_seqs, width)
        self._tables[:num_seqs, :width].copy_(tables)
        self._tables[num_seqs:num_rows, :1].zero_()  # what padding reads

    def _fill_columns(self, columns: NDArray[np.int64], batch: Batch) -> None:
        """Args: columns: [len(_COLUMNS), num_rows], written."""
        num_seqs = len(batch.context_lens)
        for name, padding, column in zip(_COLUMNS, _PADDING, columns, strict=True):
            value = getattr(batch, name)
            column[:num_seqs] = padding if value is None else value
            column[num_seqs:] = padding
