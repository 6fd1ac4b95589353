"""Draws of a step that stay on the device, until their copy to the host is done.

Nothing here waits for the device: no value that it computes is asked for. `TritonSampler` draws
anything so, `PlainDraws` what needs no more than a greedy token or a race among all of them; the
rest is left to the sampler, which waits.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from signalbox_contract.sampling_params import GREEDY_BELOW
from signalbox_kernels.random import race_keys
from signalbox_kernels.sampling import DrawStatus
from signalbox_kernels.torch.exponentials import race_of
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import BatchOutput
from signalbox_worker.batch.input_transfer import InputPacker
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.sampling import logprobs
from signalbox_worker.sampling.logprobs import NOTHING_REPORTED, ReportedRows
from signalbox_worker.sampling.sampler import failures

_ROWS_AT_ONCE = 32  # bounds the memory of whole-vocabulary draws


class DeviceDraws(NamedTuple):
    """One token a row; on the device."""

    token_ids: Tensor
    """[num_rows], whole numbers; undefined for rows that have failed."""
    status: Tensor
    """[num_rows] uint8, `DrawStatus`."""
    reported: ReportedRows = NOTHING_REPORTED
    logprobs: Sequence[Tensor] = ()
    """Log probabilities of the rows that report them, for `logprobs.read`."""

    def read(self, on_host: Callable[[Tensor], Tensor]) -> Callable[[], BatchOutput]:
        """Enqueues copies to the host; returns what makes samples of them when they are there."""
        tensors = (self.token_ids, self.status, *self.logprobs)
        return partial(_read, self.reported, *map(on_host, tensors))


class DeviceDrawing(Protocol):
    """A sampler that does not wait for the device."""

    def can_draw(self, rows: SampleRows) -> bool:
        """Returns whether it can sample all of the rows."""
        ...

    def draw(self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None) -> DeviceDraws:
        """Draws rows that `can_draw` agrees to.

        Args:
            logits: [*, vocab_size].
            logits_row: [num_rows], each row's index into `logits`; None: they are the rows.
        """
        ...


class NoDraws:
    """Satisfies `DeviceDrawing` for a sampler that waits."""

    def can_draw(self, rows: SampleRows) -> bool:
        return False

    def draw(self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None) -> DeviceDraws:
        raise NotImplementedError


class PlainDraws:
    """Satisfies `DeviceDrawing`, by PyTorch."""

    def __init__(self, packer: InputPacker) -> None:
        self._packer = packer

    def can_draw(self, rows: SampleRows) -> bool:
        return _are_plain(rows)

    def draw(self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None) -> DeviceDraws:
        if logits_row is not None:
            (index,) = self._packer.send([logits_row])
            logits = logits.index_select(0, index)
        raw = logits.float()
        least, most = torch.aminmax(raw, dim=-1)  # of which a NaN in the row makes one
        is_finite = least.isfinite() & most.isfinite()
        # Not by torch.where: its scalars would be copied to the device, with a wait.
        status = is_finite.logical_not().to(torch.uint8).mul_(int(DrawStatus.NOT_FINITE))
        token_ids = raw.argmax(dim=-1)
        if (rows.temperature >= GREEDY_BELOW).any():
            token_ids = _races(raw, rows, token_ids, self._packer)
        return DeviceDraws(token_ids, status)


def _are_plain(rows: SampleRows) -> bool:
    """Returns whether all rows are greedy or sample from the whole vocabulary, and report
    nothing."""
    if not (rows.suppressed is None and rows.biases is None and rows.allowed is None):
        return False
    asks_more = rows.filters.is_used & (rows.temperature >= GREEDY_BELOW) | (rows.num_logprobs >= 0)
    if rows.penalties is not None:
        asks_more |= rows.penalties.is_used
    return not asks_more.any()


def _races(raw: Tensor, rows: SampleRows, greedy: Tensor, packer: InputPacker) -> Tensor:
    """Returns the winner of each row's race, or the token of `greedy` for a greedy row."""
    keys = race_keys(rows.seed, rows.branch, rows.position)
    halves = keys.view(np.int32).reshape(-1, 2)  # low and high, little-endian
    temperature = np.maximum(rows.temperature, GREEDY_BELOW).astype(np.float32)
    scale, sent_halves, is_greedy = packer.send(
        [temperature, halves, rows.temperature < GREEDY_BELOW]
    )
    vocab = torch.arange(raw.shape[1], dtype=torch.int32, device=raw.device)
    drawn = []
    for start in range(0, len(raw), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        scaled = raw[part] / scale[part, None]
        weights = scaled.sub_(scaled.amax(dim=-1, keepdim=True)).exp_()
        drawn.append(weights.div_(race_of(sent_halves[part], vocab)).argmax(dim=-1))
    return torch.where(is_greedy, greedy, torch.cat(drawn))


def _read(
    reported: ReportedRows, token_ids: Tensor, status: Tensor, *computed: Tensor
) -> BatchOutput:
    failed = failures(status.numpy())
    return BatchOutput(
        token_ids=token_ids.numpy().astype(np.int32),
        logprobs=logprobs.read(reported, computed, failed),
        failed=failed,
    )
