"""Runs a step of prompts that are pooled through a native program, which makes no logits."""

import time

import numpy as np

from gpu_worker.batch.arrays import FloatArray
from gpu_worker.batch.batch import Batch, BatchOutput
from gpu_worker.batch.stage_layers import StageLayers
from gpu_worker.device.spans import span
from gpu_worker.native.executor import NativeExecutor
from gpu_worker.native.native_model import FinalNorm
from gpu_worker.pooling.hidden_states import HostStates
from gpu_worker.pooling.pooler import Pooler
from gpu_worker.sampling.sampler import Sampler
from signalbox_kernels.program import Program


class NativePoolingExecutor(NativeExecutor):
    """A program without a head, whose hidden states are normed and pooled in NumPy."""

    def __init__(
        self,
        program: Program,
        sampler: Sampler[FloatArray],
        stage: StageLayers,
        *,
        norm: FinalNorm,
        pooler: Pooler,
    ) -> None:
        super().__init__(program, sampler, stage)
        self._norm, self._pooler = norm, pooler

    def execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        with span("forward"):
            states = HostStates(self.hidden_states(batch), self._norm)
        forwarded = time.perf_counter_ns()
        output = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        if batch.pooling is not None:  # else it measures memory and time
            with span("pool"):
                output = self._pooler.pool(batch, states)
        output.forward_ns = forwarded - start
        output.sample_ns = time.perf_counter_ns() - forwarded
        return output
