"""Draws on a GPU with Triton's kernels: one copy of columns in, the tokens out, no row sorted.

Rows that are edited are copied and edited first; the others are read where the model left them.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_kernels.filters import DTYPES, Filters
from signalbox_kernels.random import race_keys
from signalbox_kernels.triton.sampling.draws import DrawColumns, draw_tokens
from signalbox_kernels.triton.sampling.logit_edits import (
    PenaltyColumns,
    add_to_tokens,
    copy_rows,
    penalise,
)
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.batch import BatchOutput, Logprobs
from signalbox_worker.batch.input_transfer import InputPacker
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.sampling import logprobs
from signalbox_worker.sampling.async_sampling import DeviceDraws

_ALIGNMENT = 4
"""Values of a column whose start is aligned to 16 bytes, without which Triton compiles anew."""


class TritonSampler:
    """A `Sampler`; gives the tokens that `TorchSampler` gives."""

    def __init__(self, *, device: torch.device) -> None:
        self.packer: InputPacker | None = None
        """Sends columns without waiting for the device; None sends them from where they lie."""
        self._device = device

    def __call__(
        self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        return self.draw(logits, rows, logits_row).read(lambda tensor: tensor.cpu())()

    def can_draw(self, rows: SampleRows) -> bool:
        """Satisfies `DeviceDrawing`."""
        return True

    def draw(self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None) -> DeviceDraws:
        if logits_row is None:
            logits_row = np.arange(len(rows))
        tokens, status = self._draw(logits, rows, logits_row)
        reported = logprobs.reported_rows(rows)
        if not len(reported.rows):
            return DeviceDraws(tokens, status)
        index, logits_index = self._send(reported.rows, logits_row[reported.rows])
        own = logits.index_select(0, logits_index).float()
        drawn = tokens.index_select(0, index).long()
        return DeviceDraws(
            tokens, status, reported, logprobs.compute(own, drawn, reported, self._send)
        )

    def logprobs(
        self, logits: Tensor, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        return logprobs.of_tokens(logits, self._tensor(targets.astype(np.int64)), num_logprobs)

    def _draw(
        self, logits: Tensor, rows: SampleRows, logits_row: Int64Array
    ) -> tuple[Tensor, Tensor]:
        """Returns tokens and status of all rows, on the device."""
        edited = rows.is_edited
        if rows.suppressed is not None:
            edited |= rows.suppressed.lengths > 0
        if not edited.any():
            return draw_tokens(logits, self._columns(rows, logits_row))
        parts = [np.flatnonzero(edited), np.flatnonzero(~edited)]
        copied, status = self._edited(logits, rows.take(parts[0]), logits_row[parts[0]])
        columns = self._columns(rows.take(parts[0]), np.arange(len(parts[0])))
        drawn = [draw_tokens(copied, columns, status=status)]
        if len(parts[1]):
            columns = self._columns(rows.take(parts[1]), logits_row[parts[1]])
            drawn.append(draw_tokens(logits, columns))
        back = self._tensor(np.argsort(np.concatenate(parts)))
        tokens, status = (torch.cat(column)[back] for column in zip(*drawn, strict=True))
        return tokens, status

    def _edited(
        self, logits: Tensor, rows: SampleRows, logits_row: Int64Array
    ) -> tuple[Tensor, Tensor]:
        """Copies and edits rows; returns them with what `copy_rows` says of each."""
        mask_of_row = masks = None
        if rows.allowed is None:
            index = self._tensor(logits_row)
        else:
            index, mask_of_row, masks = self._send(
                logits_row, rows.allowed.mask_of_row, rows.allowed.masks.view(np.int32)
            )
        copied, status = copy_rows(logits, index, mask_of_row=mask_of_row, masks=masks)
        self._add(copied, rows)
        if rows.penalties is not None:
            penalise(copied, self._penalty_columns(rows))
        return copied, status

    def _add(self, logits: Tensor, rows: SampleRows) -> None:
        """Adds suppressed tokens and biases to the logits, as one list of pairs."""
        runs, values = [], []
        if rows.suppressed is not None:
            runs.append(rows.suppressed)
            values.append(np.full(len(rows.suppressed.token_ids), -np.inf, dtype=np.float32))
        if rows.biases is not None:
            runs.append(rows.biases.runs)
            values.append(rows.biases.values)
        if runs:
            pairs = self._send(
                np.concatenate([run.rows for run in runs]),
                np.concatenate([run.token_ids for run in runs]),
                np.concatenate(values),
            )
            add_to_tokens(logits, *pairs)

    def _penalty_columns(self, rows: SampleRows) -> PenaltyColumns:
        assert rows.penalties is not None
        picked = np.flatnonzero(rows.penalties.is_used)
        used, num_tokens = rows.penalties.take(picked), rows.position[picked]
        longest = int(num_tokens.max(initial=0))
        return PenaltyColumns(
            *self._send(
                picked,
                used.presence,
                used.frequency,
                used.repetition,
                used.num_prompt,
                num_tokens,
                used.tokens[used.owners, :longest],
            )
        )

    def _columns(self, rows: SampleRows, logits_row: Int64Array) -> DrawColumns:
        """Returns all columns on the device, sent in one copy."""
        keys = race_keys(rows.seed, rows.branch, rows.position).view(np.int32).reshape(-1, 2)
        columns = [*map(_bits, (rows.temperature, *rows.filters)), *keys.T]
        num_rows = len(rows)
        aligned = -(-num_rows // _ALIGNMENT) * _ALIGNMENT
        packed = np.zeros((2 + len(columns), aligned), dtype=np.int32)
        packed[:2].reshape(-1).view(np.int64)[:num_rows] = logits_row
        packed[2:, :num_rows] = columns
        there = self._tensor(packed)
        temperature, *filters, key_low, key_high = there[2:, :num_rows]
        kinds = zip(filters, DTYPES, strict=True)
        return DrawColumns(
            there[:2].view(-1).view(torch.int64)[:num_rows],
            temperature.view(torch.float32),
            Filters._make(
                [one.view(torch.float32) if kind == "float32" else one for one, kind in kinds]
            ),
            key_low,
            key_high,
        )

    def _tensor(self, array: NDArray[np.generic]) -> Tensor:
        return self._send(array)[0]

    def _send(self, *arrays: NDArray[Any]) -> list[Tensor]:
        """Sends arrays in one copy if there is a packer, which has buffers for a few copies a
        step."""
        if self.packer is not None:
            return self.packer.send(arrays)
        contiguous = (torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        return [tensor.to(self._device, non_blocking=True) for tensor in contiguous]


def _bits(column: NDArray[Any]) -> NDArray[np.int32]:
    """Returns a column as 32 bits a row; whole numbers are cut to them."""
    if column.dtype != np.float32:
        column = np.minimum(column, np.iinfo(np.int32).max).astype(np.int32)
    return column.view(np.int32)
