"""Runs a step on a device without waiting for it: the host enqueues, and hears of draws later.

Inputs go in one copy out of pinned memory. Steps are graphs, if there is one that is large enough;
all others are launched kernel by kernel. What is drawn stays on the device, where the next step may
take its tokens from it, and is copied to the host behind the step. A step that the sampler must
draw for, or that reports log probabilities of a prompt or logits, is waited for.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from signalbox_kernels import triton
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.batch.input_transfer import InputPacker, PinnedBuffers
from signalbox_worker.config import CacheConfig
from signalbox_worker.device.device_choice import streams_of
from signalbox_worker.device.graphs import GraphRecorder
from signalbox_worker.device.spans import span
from signalbox_worker.device.streams import Event
from signalbox_worker.models.layers import ForwardContext
from signalbox_worker.models.layers.adapters import batch_adapters
from signalbox_worker.runner.executors.step_graphs import (
    DevicePlanning,
    StepGraphs,
    fed_tokens,
    graph_sizes,
)
from signalbox_worker.runner.executors.torch_executor import TorchExecutor
from signalbox_worker.runner.loading.loaded_model import LoadedModel
from signalbox_worker.sampling.async_sampling import DeviceDrawing, DeviceDraws, NoDraws, PlainDraws
from signalbox_worker.sampling.sampler import Sampler
from signalbox_worker.sampling.torch_sampler import TorchSampler

_DRAWS_A_SEQUENCE = 4  # that are kept for the next step, on average; prompts draw for n at once


class Marks(NamedTuple):
    """Events of one step on the stream that computes; all timed."""

    begin: Event
    forwarded: Event
    drawn: Event


class LaunchedStep:
    """A step that was enqueued; satisfies `Launched`."""

    def __init__(self, marks: Marks, read: Callable[[], BatchOutput], *, can_feed: bool) -> None:
        self.can_feed = can_feed
        self._marks = marks
        self._read = read

    def wait(self) -> None:
        self._marks.drawn.wait()

    def samples(self) -> BatchOutput:
        self.wait()
        samples, marks = self._read(), self._marks
        samples.forward_ns = marks.forwarded.ns_since(marks.begin)
        samples.sample_ns = marks.drawn.ns_since(marks.forwarded)
        return samples


class AsyncExecutor(TorchExecutor):
    """A `TorchExecutor` that is launched; `use_graphs` makes its steps graphs."""

    def __init__(
        self, loaded: LoadedModel, cache_config: CacheConfig, planning: DevicePlanning
    ) -> None:
        super().__init__(loaded, cache_config)
        device, self._compute = loaded.device, streams_of(loaded.device).compute
        self._planning = planning
        self._pinned = PinnedBuffers(device, self._compute)
        self._packer = InputPacker(device, self._pinned)
        self._drawing = _drawing(loaded.sampler, self._packer)
        num_draws = _DRAWS_A_SEQUENCE * cache_config.max_num_seqs
        self._drawn = torch.zeros(num_draws, dtype=torch.int64, device=device)
        """Draws that are kept for the next step; graphs read it too."""

    def use_graphs(self, recorder: GraphRecorder, *, max_tokens: int) -> None:
        """Args: max_tokens: tokens of the largest mixed step that is a graph."""
        most = self._cache_config.num_batched_tokens(self._device.type)
        self.graphs = StepGraphs(
            self.loaded,
            self._planning,
            recorder,
            pinned=self._pinned,
            drawn=self._drawn,
            sizes=graph_sizes(
                max_num_seqs=self._cache_config.max_num_seqs, max_tokens=min(max_tokens, most)
            ),
        )

    @property
    def launches(self) -> bool:
        return True

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedStep:
        """Enqueues a batch; one that names draws of the batch before comes right after it."""
        with self._computing(self._use_of(batch)):
            return self._launch(batch)

    def _execute(self, batch: Batch) -> BatchOutput:
        return self._launch(batch).samples()

    def _launch(self, batch: Batch) -> LaunchedStep:
        begin = self._compute.record(is_timed=True)
        with span("forward"):
            hidden, logits, row_of = self._enqueue(batch)
        forwarded = self._compute.record(is_timed=True)
        with span("sample"):
            batch.complete()  # the device computes meanwhile
            draws = None
            if logits is not None:
                draws = self._draw(batch, logits, row_of)
            if draws is not None:
                read = self._send_back(draws)
            else:
                read = partial(_same, self._draw_now(batch, hidden, logits, row_of))
        marks = Marks(begin, forwarded, self._compute.record(is_timed=True))
        return LaunchedStep(marks, read, can_feed=draws is not None)

    def _enqueue(self, batch: Batch) -> tuple[Tensor | None, Tensor | None, Int64Array | None]:
        """Returns the hidden states, the logits, and the row of each draw there.

        The hidden states are None if they are not needed, the others are as in `_row_logits`.
        """
        if (size := self.graphs.size_for(batch)) is not None:
            return None, *self.graphs.run(batch, size)
        hidden = self._forward(batch)
        return hidden, *self._row_logits(hidden, batch)

    def _forward(self, batch: Batch) -> Tensor:
        inputs = self._packer.batch(batch)
        token_ids = inputs.token_ids
        if batch.fed_from is not None:
            (fed_from,) = self._packer.send([batch.fed_from])
            token_ids = fed_tokens(token_ids, fed_from, self._drawn)
        plan = self._planning.plan_on_device(inputs)
        adapters = batch_adapters(batch.adapters, self._device)
        return self._model.forward(
            token_ids, inputs.positions, ForwardContext(plan, adapters=adapters)
        )

    def _tensor(self, array: Int64Array) -> Tensor:
        (tensor,) = self._packer.send([array])
        return tensor

    def _draw(self, batch: Batch, logits: Tensor, row_of: Int64Array | None) -> DeviceDraws | None:
        """Returns draws that stay on the device; None if the host must wait for them."""
        if batch.prompt_rows is not None or batch.rows.returns_logits is not None:
            return None
        if len(batch.rows) > len(self._drawn) or not self._drawing.can_draw(batch.rows):
            return None
        return self._drawing.draw(logits, batch.rows, row_of)

    def _draw_now(
        self,
        batch: Batch,
        hidden: Tensor | None,
        logits: Tensor | None,
        row_of: Int64Array | None,
    ) -> BatchOutput:
        samples = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        if logits is not None:
            samples = self._sample(logits, batch.rows, row_of)
        if batch.prompt_rows is not None and hidden is not None:
            samples.prompt_logprobs = self._prompt_logprobs(hidden, batch.prompt_rows)
        return samples

    def _send_back(self, draws: DeviceDraws) -> Callable[[], BatchOutput]:
        """Keeps the draws for the next step; returns what reads them when they have arrived."""
        kept = self._drawn[: len(draws.token_ids)].copy_(draws.token_ids)
        kept.clamp_(0, self.model.vocab_size - 1)  # of a row that failed, too: it is looked up
        return draws.read(self._on_host)

    def _on_host(self, tensor: Tensor) -> Tensor:
        host = torch.empty(
            tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda"
        )
        return host.copy_(tensor, non_blocking=True)


def _same(samples: BatchOutput) -> BatchOutput:
    return samples


def _drawing(sampler: Sampler[Tensor], packer: InputPacker) -> DeviceDrawing:
    if isinstance(sampler, TorchSampler):
        return PlainDraws(packer)
    if not triton.is_installed():
        return NoDraws()
    from signalbox_worker.sampling.triton_sampler import TritonSampler

    if not isinstance(sampler, TritonSampler):
        return NoDraws()
    sampler.packer = packer
    return sampler
