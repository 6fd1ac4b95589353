"""Runs a pipeline stage through PyTorch: hidden states come in, or go out, or both."""

import time

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.spans import span
from signalbox_worker.models.layers import ForwardContext
from signalbox_worker.models.layers.adapters import batch_adapters
from signalbox_worker.runner.executors.torch_executor import TorchExecutor


class StageExecutor(TorchExecutor):
    """A `TorchExecutor` of some of the layers."""

    def execute_alone(self, batch: Batch) -> None:
        if not self.layers.is_first:  # hidden states that no stage before has computed
            row_bytes = self.loaded.hidden_size * self.loaded.dtype.itemsize
            batch.hidden = np.zeros((len(batch.token_ids), row_bytes), dtype=np.uint8)
        self.execute(batch)

    def _execute(self, batch: Batch) -> BatchOutput:
        if self.layers.is_last:
            return super()._execute(batch)
        start = time.perf_counter_ns()
        with span("forward"):
            hidden = self._forward(batch).contiguous().view(torch.uint8).cpu().numpy()
        none = np.empty(0, dtype=np.int32)
        forward_ns = time.perf_counter_ns() - start
        return BatchOutput(token_ids=none, hidden=hidden, forward_ns=forward_ns)

    def _forward(self, batch: Batch) -> Tensor:
        hidden = None
        if batch.hidden is not None:
            hidden = torch.from_numpy(batch.hidden).view(self.loaded.dtype).to(self._device)
        return self._model.forward(
            self._tensor(batch.token_ids),
            self._tensor(batch.positions),
            ForwardContext(
                self._attention.plan(batch),
                hidden,
                adapters=batch_adapters(batch.adapters, self._device),
            ),
        )
