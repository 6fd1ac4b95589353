"""Runs a step through PyTorch: forward pass, logits of what draws, and the sampler.

Everything device-specific below it is an op, an attention backend or a packed weight; this module
only moves a batch's arrays to the device and times the parts.
"""

import time

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.attention import AttentionBackend
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.device.spans import span
from signalbox_worker.executors.prompt_logprobs import prompt_logprobs
from signalbox_worker.layers import ForwardContext
from signalbox_worker.layers.adapters import batch_adapters
from signalbox_worker.models import Model
from signalbox_worker.sampling.sampler import Sampler


class TorchExecutor:
    """A model with its attention, bound to a pool."""

    def __init__(
        self,
        model: Model,
        attention: AttentionBackend,
        sampler: Sampler[Tensor],
        device: torch.device,
    ) -> None:
        self.sampler = sampler
        self._model = model
        self._attention = attention
        self._device = device

    @property
    def block_bytes(self) -> int:
        return self._attention.block_bytes

    def bind(self, pool: Tensor) -> None:
        self._attention.bind(pool)

    def execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        with span("forward"):
            hidden = self._forward(batch)
            logits, row_of = self._row_logits(hidden, batch)
            self._synchronize()
        forwarded = time.perf_counter_ns()
        samples = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        with span("sample"):
            if logits is not None:
                samples = self.sampler(logits, batch.rows, row_of)
            if batch.prompt_rows is not None:
                samples.prompt_logprobs = self._prompt_logprobs(hidden, batch.prompt_rows)
        samples.forward_ns = forwarded - start
        samples.sample_ns = time.perf_counter_ns() - forwarded
        return samples

    def _forward(self, batch: Batch) -> Tensor:
        return self._model.forward(
            self._tensor(batch.token_ids),
            self._tensor(batch.positions),
            ForwardContext(
                self._attention.plan(batch),
                adapters=batch_adapters(batch.adapters, self._device),
                token_types=self._token_types(batch),
            ),
        )

    def _token_types(self, batch: Batch) -> Tensor | None:
        types = batch.token_types
        return None if types is None else torch.from_numpy(types).to(self._device)

    def _tensor(self, array: Int64Array) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _row_logits(self, hidden: Tensor, batch: Batch) -> tuple[Tensor | None, Int64Array | None]:
        """Returns the logits of each token that draws, once, and each row's index in them.

        The index is None if row i has the logits i.
        """
        if not len(batch.rows):
            return None, None
        tokens, row_of = batch.rows.drawing_tokens()
        if len(tokens) != hidden.shape[0]:
            hidden = hidden.index_select(0, self._tensor(tokens))
        return self._model.logits(hidden), row_of

    def _prompt_logprobs(self, hidden: Tensor, rows: PromptRows) -> list[Logprobs]:
        def logits_of(tokens: Int64Array) -> Tensor:
            return self._model.logits(hidden.index_select(0, self._tensor(tokens)))

        return prompt_logprobs(rows, self.sampler, logits_of)

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            # Only this stream: blocks that are swapped beside the step need no wait.
            torch.cuda.current_stream(self._device).synchronize()
