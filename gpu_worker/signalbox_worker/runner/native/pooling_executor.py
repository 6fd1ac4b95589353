"""Runs a step of prompts that are pooled through a native program, which makes no logits."""

import time
from dataclasses import replace

import numpy as np

from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.spans import span
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.models.pooling.hidden_states import HostStates
from signalbox_worker.runner.native.executor import NativeExecutor
from signalbox_worker.runner.native.native_model import NativeModel, NativePooling


class NativePoolingExecutor(NativeExecutor):
    """A program without a head, whose hidden states are normed and pooled in NumPy."""

    def __init__(self, loaded: NativeModel, layers: StageLayers, pooling: NativePooling) -> None:
        super().__init__(loaded, layers)
        self._pooling = pooling

    def execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        with span("forward"):
            states = HostStates(self.hidden_states(self._typed(batch)), self._pooling.norm)
        forwarded = time.perf_counter_ns()
        output = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        if batch.pooling is not None:  # else it measures memory and time
            with span("pool"):
                output = self._pooling.pooler.pool(batch, states)
        output.forward_ns = forwarded - start
        output.sample_ns = time.perf_counter_ns() - forwarded
        return output

    def _typed(self, batch: Batch) -> Batch:
        """Gives tokens of types that the model lacks its last one."""
        if batch.token_types is None:
            return batch
        most = self._pooling.num_token_types
        types = np.minimum(batch.token_types, most - 1).astype(np.int32) if most else None
        return replace(batch, token_types=types)
