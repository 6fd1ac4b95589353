"""Runs a pipeline stage through PyTorch: hidden states come in, or go out, or both."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.attention import AttentionBackend
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.stage_layers import StageLayers
from signalbox_worker.device.spans import span
from signalbox_worker.executors.torch_executor import TorchExecutor
from signalbox_worker.layers import ForwardContext
from signalbox_worker.layers.adapters import batch_adapters
from signalbox_worker.models import Model
from signalbox_worker.sampling.sampler import Sampler


@dataclass(frozen=True, slots=True)
class HiddenShape:
    """Form of the hidden states between stages."""

    hidden_size: int
    dtype: torch.dtype


class StageExecutor(TorchExecutor):
    """A `TorchExecutor` of some of the layers. Steps are launched kernel by kernel."""

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        sampler: Sampler[Tensor],
        device: torch.device,
        *,
        stage: StageLayers,
        shape: HiddenShape,
    ) -> None:
        super().__init__(model, attention, sampler, device)
        self._stage = stage
        self._shape = shape

    def make_up_hidden(self, batch: Batch) -> None:
        """Gives hidden states to a batch that no stage before has computed."""
        if not self._stage.is_first:
            row_bytes = self._shape.hidden_size * self._shape.dtype.itemsize
            batch.hidden = np.zeros((len(batch.token_ids), row_bytes), dtype=np.uint8)

    def execute(self, batch: Batch) -> BatchOutput:
        if self._stage.is_last:
            return super().execute(batch)
        start = time.perf_counter_ns()
        with span("forward"):
            hidden = self._forward(batch).contiguous().view(torch.uint8).cpu().numpy()
        none = np.empty(0, dtype=np.int32)
        forward_ns = time.perf_counter_ns() - start
        return BatchOutput(token_ids=none, hidden=hidden, forward_ns=forward_ns)

    def _forward(self, batch: Batch) -> Tensor:
        hidden = None
        if batch.hidden is not None:
            hidden = torch.from_numpy(batch.hidden).view(self._shape.dtype).to(self._device)
        return self._model.forward(
            self._tensor(batch.token_ids),
            self._tensor(batch.positions),
            ForwardContext(
                self._attention.plan(batch),
                hidden,
                adapters=batch_adapters(batch.adapters, self._device),
            ),
        )
