"""Computes an MTP layer, of hidden states and the tokens behind them."""

from dataclasses import dataclass

import numpy as np

from signalbox_worker.batch.arrays import FloatArray, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.runner.native.executor import NativeExecutor
from signalbox_worker.runner.native.native_model import FinalNorm, NativeModel


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpNorms:
    """Norms of what the layer reads: as in transformers, it reads normed hidden states."""

    of_model: FinalNorm
    """The norm behind the model's last layer."""
    of_layer: FinalNorm
    """The norm behind the MTP layer, which reads its own result to predict another token."""


class MtpExecutor(NativeExecutor):
    """The program of an MTP layer. Its batches have hidden states that are normed."""

    def __init__(self, loaded: NativeModel, layers: StageLayers, norms: MtpNorms) -> None:
        super().__init__(loaded, layers)
        self.norms = norms

    @property
    def hidden_size(self) -> int:
        return self.program.shape.hidden_size

    def predict(self, batch: Batch, states: FloatArray) -> tuple[BatchOutput, FloatArray]:
        """Executes a batch; returns the tokens that it draws, and the normed results of the layer
        at the tokens that it draws after.

        Args:
            states: [num_tokens, hidden_size] float32, normed; that of the token before each token.
        """
        batch.hidden = np.ascontiguousarray(states).view(np.uint8)
        output = self.execute(batch)
        drawn: Int64Array = batch.rows.token_index
        return output, self.norms.of_layer(self.last_hidden(len(states))[drawn])
