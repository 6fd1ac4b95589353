"""Runs a step through PyTorch: forward pass, logits of what draws, and the sampler.

Everything device-specific below it is an op, an attention backend or a packed weight; this module
only moves a batch's arrays to the device and times the parts.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import numpy as np
import torch
from torch import Tensor

from signalbox_kernels import triton
from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import PromptRows, SampleRows
from signalbox_worker.config import CacheConfig
from signalbox_worker.device.inspection import ProfileOptions
from signalbox_worker.device.memory import is_out_of_memory
from signalbox_worker.device.spans import span
from signalbox_worker.device.torch_profiler import TorchRecording
from signalbox_worker.kv.cache.block_dependencies import BlockUse, blocks_of
from signalbox_worker.kv.cache.cache_engine import CacheEngine
from signalbox_worker.kv.cache.capacity import Footprint
from signalbox_worker.kv.cache.cuda_device import measured
from signalbox_worker.kv.cache.pools import Pools
from signalbox_worker.models.layers import ForwardContext
from signalbox_worker.models.layers.adapters import batch_adapters
from signalbox_worker.runner.executors.drawn_logits import add_logits
from signalbox_worker.runner.executors.executor import Executor
from signalbox_worker.runner.executors.prompt_logprobs import prompt_logprobs
from signalbox_worker.runner.executors.step_graphs import NoGraphs
from signalbox_worker.runner.executors.warm_up import warm_up_batches
from signalbox_worker.runner.loading.loaded_model import LoadedModel


class TorchExecutor(Executor):
    """A model with its attention, bound to a pool. Its steps are launched kernel by kernel."""

    def __init__(self, loaded: LoadedModel, cache_config: CacheConfig) -> None:
        self.loaded = loaded
        self.sampler = loaded.sampler
        self.graphs = NoGraphs()
        self.device = measured(loaded.device)
        self.model, self.backends, self.layers = loaded.info, loaded.backends, loaded.stage
        self.adapters, self.weights_bytes = loaded.adapters, loaded.weights_bytes
        self._cache_config = cache_config
        self._model = loaded.model
        self._attention = loaded.attention
        self._device = loaded.device
        self._computing: Callable[[Callable[[], BlockUse]], AbstractContextManager[object]]
        self._computing = nullcontext
        self._is_warm = False

    @property
    def footprint(self) -> Footprint:
        loaded, pooling = self.loaded, self.loaded.info.pooling
        return Footprint(
            block_size=loaded.block_size,
            block_bytes=self._attention.block_bytes,
            max_model_len=loaded.info.max_model_len,
            computes_whole=pooling is not None and pooling.is_bidirectional,
            others_bytes=loaded.others_bytes,
            adapters_bytes=loaded.adapters.memory.left,
        )

    def make_pools(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> Pools:
        try:
            cache = CacheEngine(
                num_gpu_blocks=num_gpu_blocks,
                num_cpu_blocks=num_cpu_blocks,
                block_bytes=self._attention.block_bytes,
                device=self._device,
            )
        except torch.OutOfMemoryError as error:
            raise MemoryError(str(error).partition("\n")[0]) from None
        self._bind(cache.gpu_pool)
        self._computing = cache.computing
        return cache

    def drop_pools(self) -> None:
        self._computing = nullcontext
        block_bytes = self._attention.block_bytes
        self._bind(torch.zeros(1, block_bytes, dtype=torch.uint8, device=self._device))

    def _bind(self, pool: Tensor) -> None:
        self.graphs.forget()  # they work on the old pool
        self._attention.bind(pool)

    @torch.inference_mode()
    def measure_graphs(self) -> int:
        return self.graphs.measure()

    def prepare(self) -> None:
        with torch.inference_mode():
            self.graphs.capture()
        if self._device.type == "cuda" and not self._is_warm:
            self.warm_up()

    def warm_up(self) -> None:
        """Compiles every kernel that a step may use; one that comes later is logged."""
        info = self.loaded.info
        for batch in warm_up_batches(
            num_tokens=self._cache_config.num_batched_tokens(self._device.type),
            block_size=self.loaded.block_size,
            max_model_len=info.max_model_len,
            vocab_size=info.vocab_size,
        ):
            self.execute_alone(batch)
        self._is_warm = True
        if triton.is_installed():
            from signalbox_kernels.triton import compilations

            compilations.report_from_now_on()

    @property
    def num_graphs(self) -> int:
        return len(self.graphs)

    @property
    def num_collectives(self) -> int:
        return self.loaded.group.collectives.num_joined

    @property
    def collective_ns(self) -> int:
        return self.loaded.group.collectives.spent_ns

    def abort_collectives(self) -> None:
        self.loaded.group.collectives.abort()

    def begin_recording(self, options: ProfileOptions) -> TorchRecording:
        return TorchRecording(options, self._device)

    @torch.inference_mode()
    def execute(self, batch: Batch) -> BatchOutput:
        try:
            with self._computing(self._use_of(batch)):
                return self._execute(batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from None

    def _use_of(self, batch: Batch) -> Callable[[], BlockUse]:
        return partial(blocks_of, batch, block_size=self.loaded.block_size)

    def _execute(self, batch: Batch) -> BatchOutput:
        start = time.perf_counter_ns()
        with span("forward"):
            hidden = self._forward(batch)
            logits, row_of = self._row_logits(hidden, batch)
            self._synchronize()
        forwarded = time.perf_counter_ns()
        samples = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        with span("sample"):
            if logits is not None:
                samples = self._sample(logits, batch.rows, row_of)
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

    def _sample(self, logits: Tensor, rows: SampleRows, row_of: Int64Array | None) -> BatchOutput:
        samples = self.sampler(logits, rows, row_of)
        if rows.returns_logits is not None:
            add_logits(samples, rows, row_of, partial(_pick, logits))
        return samples

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            # Only this stream: blocks that are swapped beside the step need no wait.
            torch.cuda.current_stream(self._device).synchronize()


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


def _pick(logits: Tensor, rows: Int64Array, token_ids: Int32Array) -> FloatArray:
    """Returns the logits at some rows and tokens, on the host."""
    index = torch.from_numpy(rows), torch.from_numpy(token_ids.astype(np.int64))
    found: FloatArray = logits[index].float().cpu().numpy()
    return found
