"""Runs a step of prompts that are pooled through PyTorch: forward pass, norm, pooler."""

import time
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.batch.arrays import FloatArray, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.config import CacheConfig
from signalbox_worker.device.spans import span
from signalbox_worker.models.pooling.hidden_states import Sums
from signalbox_worker.models.pooling.pooler import Pooler
from signalbox_worker.runner.executors.torch_executor import TorchExecutor
from signalbox_worker.runner.loading.loaded_model import LoadedModel


class DeviceStates:
    """Hidden states where they were computed. Satisfies `TokenStates`."""

    def __init__(self, states: Tensor, norm: Callable[[Tensor], Tensor]) -> None:
        self._states, self._norm = states, norm

    def rows(self, tokens: Int64Array) -> FloatArray:
        rows = self._states.index_select(0, torch.from_numpy(tokens).to(self._states.device))
        return self._norm(rows).float().cpu().numpy()

    def sums(self, runs: Sequence[slice]) -> Sums:
        sums = [self._normed[run].sum(0, dtype=torch.float64) for run in runs]
        return torch.stack(sums).cpu().numpy()

    def weighted_sums(self, runs: Sequence[slice], first: Sequence[int]) -> Sums:
        return torch.stack(list(map(self._weighted_sum, runs, first))).cpu().numpy()

    def _weighted_sum(self, run: slice, first: int) -> Tensor:
        rows = self._normed[run].double()
        weights = torch.arange(first, first + len(rows), device=rows.device, dtype=rows.dtype)
        return weights @ rows

    def maxima(self, runs: Sequence[slice]) -> FloatArray:
        largest = torch.stack([self._normed[run].amax(0) for run in runs])
        return largest.float().cpu().numpy()

    @cached_property
    def _normed(self) -> Tensor:
        return self._norm(self._states)


class PoolingExecutor(TorchExecutor):
    """A `TorchExecutor` whose sequences end in vectors."""

    def __init__(self, loaded: LoadedModel, cache_config: CacheConfig, pooler: Pooler) -> None:
        super().__init__(loaded, cache_config)
        self._pooler = pooler

    def _execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        with span("forward"):
            states = DeviceStates(self._forward(batch), self._model.normed)
            self._synchronize()
        forwarded = time.perf_counter_ns()
        with span("pool"):
            output = self._pool(batch, states)
        output.forward_ns = forwarded - start
        output.sample_ns = time.perf_counter_ns() - forwarded
        return output

    def _pool(self, batch: Batch, states: DeviceStates) -> BatchOutput:
        if batch.pooling is not None:
            return self._pooler.pool(batch, states)
        states.sums([slice(0, len(batch.token_ids))])  # a batch that measures memory and time
        return BatchOutput(token_ids=np.empty(0, dtype=np.int32))
