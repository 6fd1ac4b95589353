"""Runs one model on one device: loads it, measures what fits, computes batches.

Satisfies `step.Runner`. Everything device-specific below it is an op, an attention backend or a
packed weight; this module only moves a batch's arrays to the device and times the parts.
"""

import contextlib
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from gpu_worker.attention import AttentionBackend, AttentionShape, attention_backend
from gpu_worker.cache_engine import CacheEngine
from gpu_worker.capacity import measure_capacity
from gpu_worker.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ModelError,
    ParallelConfig,
)
from gpu_worker.devices import choose_device, dtype_for_half
from gpu_worker.layers import ParallelGroup, Placement
from gpu_worker.layers.linear import kv_heads_per_rank
from gpu_worker.loading import (
    ModelSource,
    choose_quantization,
    dummy_placement,
    load_weights,
    open_model,
)
from gpu_worker.memory import device_use, is_out_of_memory, tensor_bytes
from gpu_worker.models import Model, ServedConfig, SoftCapped, find_model
from gpu_worker.models.plugins import import_plugins
from gpu_worker.native_sampler import CpuSampler
from gpu_worker.native_step import NativeStep, make_program, why_not_natively
from gpu_worker.sample_rows import PromptRows
from gpu_worker.sampler import Sampler, TorchSampler
from gpu_worker.step import (
    Batch,
    BlockMapping,
    CacheCapacity,
    Int64Array,
    Logprobs,
    MemoryReport,
    ModelInfo,
    ProfileOptions,
    Samples,
)
from gpu_worker.torch_profiler import TorchRecording, span
from signalbox_kernels.native import NativeUnavailable
from signalbox_kernels.program import Program

_PROMPT_ROWS_AT_ONCE = 64
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _silent(_: str) -> None:
    """Progress that nobody follows."""


class ModelRunner:
    """A loaded model with its caches. Call from one thread."""

    def __init__(
        self,
        model_config: ModelConfig,
        cache_config: CacheConfig,
        *,
        parallel_config: ParallelConfig | None = None,
        device_config: DeviceConfig | None = None,
        progress: Callable[[str], None] = _silent,
    ) -> None:
        device_config = device_config or DeviceConfig()
        self._cache_config = cache_config
        self._group = _join(parallel_config or ParallelConfig())
        self._device = _device(device_config)
        self._source = open_model(model_config, progress)
        import_plugins(model_config.model_plugins, self._source.config)
        spec = find_model(
            self._source.config,
            impl=model_config.model_impl,
            directory=self._source.directory,
            trust_remote_code=model_config.trust_remote_code,
        )
        config = spec.read_config(self._source.config)
        placement = Placement(self._device, _dtype(model_config.dtype, self._source, self._device))
        if model_config.load_format == "dummy":
            placement = dummy_placement(placement)
        self._info = _model_info(model_config, config, self._source, placement.dtype)
        try:
            with torch.inference_mode():
                self._model: Model = spec.build(
                    config, self._info.max_model_len, placement, self._group
                )
                program = self._load(model_config, device_config, placement, progress)
        except torch.OutOfMemoryError:
            raise MemoryError(
                f"the weights of {self._info.name} do not fit on {self._device}; "
                "use a smaller model, a smaller dtype or more tensor-parallel ranks"
            ) from None
        self._sampler = self._make_sampler(config.vocab_size, device_config, program)
        self._native = None if program is None else NativeStep(program, self._sampler)
        self._weights_bytes = program.weights_bytes if program else tensor_bytes(self._model)
        self._attention = attention_backend(
            device_config.attention_backend,
            _attention_shape(config, cache_config.block_size, placement, self._group),
        )
        self._cache: CacheEngine | None = None
        progress(f"{self._info.name} is loaded on {self._device} in {self._info.dtype}")

    def _load(
        self,
        model_config: ModelConfig,
        device_config: DeviceConfig,
        placement: Placement,
        progress: Callable[[str], None],
    ) -> Program | None:
        """Loads the weights, into a native program if there can be one."""
        block_size = self._cache_config.block_size
        why_not = why_not_natively(
            self._model,
            device_config,
            placement=placement,
            group=self._group,
            block_size=block_size,
        )
        quantization = choose_quantization(model_config, self._source, why_not)
        load_weights(
            self._model,
            self._source,
            progress,
            quantization=quantization,
            pack=why_not is not None,
        )
        if why_not is not None:
            return None
        return make_program(
            self._model,
            device_config,
            placement=placement,
            quantization=quantization,
            block_size=block_size,
            max_model_len=self._info.max_model_len,
        )

    def _make_sampler(
        self, vocab_size: int, device_config: DeviceConfig, program: Program | None
    ) -> Sampler:
        """The native one on a CPU, unless PyTorch is asked for or there is no library."""
        if self._device.type == "cpu" and device_config.cpu_backend != "torch":
            num_threads = device_config.num_threads or torch.get_num_threads()
            with contextlib.suppress(NativeUnavailable):  # which `make_program` has warned of
                return CpuSampler(program=program, num_threads=num_threads)
        return TorchSampler(vocab_size=vocab_size, device=self._device)

    @property
    def model(self) -> ModelInfo:
        return self._info

    def tokenizer_files(self) -> dict[str, bytes]:
        return self._source.tokenizer_files()

    def profile(self) -> CacheCapacity:
        return measure_capacity(
            cache_config=self._cache_config,
            max_model_len=self._info.max_model_len,
            block_bytes=self._blocks.block_bytes,
            device=self._device,
            execute=self._execute_without_cache,
        )

    def _execute_without_cache(self, batch: Batch) -> None:
        """Runs a batch whose blocks are all block 0 of a pool of one."""
        self.init_cache_engine(num_gpu_blocks=1, num_cpu_blocks=0)
        self.execute(batch)
        self._cache = None

    def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
        self._cache = None  # the old pools go before the new ones come
        try:
            self._cache = CacheEngine(
                num_gpu_blocks=num_gpu_blocks,
                num_cpu_blocks=num_cpu_blocks,
                block_bytes=self._blocks.block_bytes,
                device=self._device,
            )
        except (torch.OutOfMemoryError, MemoryError):
            raise MemoryError(
                f"no memory for {num_gpu_blocks} GPU and {num_cpu_blocks} CPU blocks; "
                "lower gpu_memory_utilization, kv_cache_bytes or swap_space_bytes"
            ) from None
        self._blocks.bind(self._cache.gpu_pool)

    @property
    def _blocks(self) -> NativeStep | AttentionBackend:
        """Whoever knows what is inside a block."""
        return self._native or self._attention

    @property
    def cache(self) -> CacheEngine:
        if self._cache is None:
            raise RuntimeError("init_cache_engine comes first")
        return self._cache

    def swap_out(self, mapping: BlockMapping) -> None:
        with span("swap_out"):
            self.cache.swap_out(mapping)

    def swap_in(self, mapping: BlockMapping) -> None:
        with span("swap_in"):
            self.cache.swap_in(mapping)

    def copy(self, mapping: BlockMapping) -> None:
        with span("copy_blocks"):
            self.cache.copy(mapping)

    def memory(self) -> MemoryReport:
        pools = self._cache
        return MemoryReport(
            weights=self._weights_bytes,
            kv=pools.gpu_pool.nbytes if pools else 0,
            swap=pools.cpu_pool.nbytes if pools else 0,
            **device_use(self._device)._asdict(),
        )

    def begin_recording(self, options: ProfileOptions) -> TorchRecording:
        program = self._native.program if self._native is not None else None
        return TorchRecording(options, self._device, program)

    def execute(self, batch: Batch) -> Samples:
        """Raises MemoryError where a smaller batch may do."""
        try:
            return self._execute(batch)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise MemoryError(str(error).partition("\n")[0]) from None

    @torch.inference_mode()
    def _execute(self, batch: Batch) -> Samples:
        if not len(batch.token_ids):
            return Samples(token_ids=np.empty(0, dtype=np.int32))
        if self._native is not None:
            return self._native.execute(batch)
        start = time.perf_counter_ns()
        with span("forward"):
            hidden = self._forward(batch)
            logits, row_of = self._row_logits(hidden, batch)
            self._synchronize()
        forwarded = time.perf_counter_ns()
        samples = Samples(token_ids=np.empty(0, dtype=np.int32))
        with span("sample"):
            if logits is not None:
                samples = self._sampler(logits, batch.rows, row_of)
            if batch.prompt_rows is not None:
                samples.prompt_logprobs = self._prompt_logprobs(hidden, batch.prompt_rows)
        samples.forward_ns = forwarded - start
        samples.sample_ns = time.perf_counter_ns() - forwarded
        return samples

    def _forward(self, batch: Batch) -> Tensor:
        if self._cache is None:
            raise RuntimeError("init_cache_engine comes first")
        return self._model.forward(
            torch.from_numpy(batch.token_ids).to(self._device),
            torch.from_numpy(batch.positions).to(self._device),
            self._attention.plan(batch),
        )

    def _row_logits(self, hidden: Tensor, batch: Batch) -> tuple[Tensor | None, Int64Array | None]:
        """Logits of tokens that draw, each once; and each row's index there, None if its own."""
        index = batch.rows.token_index
        if not len(index):
            return None, None
        tokens, row_of = np.unique(index, return_inverse=True)
        if len(tokens) != hidden.shape[0]:
            hidden = hidden.index_select(0, torch.from_numpy(tokens).to(self._device))
        is_own = len(tokens) == len(index) and (row_of[1:] > row_of[:-1]).all()
        return self._model.logits(hidden), None if is_own else row_of

    def _prompt_logprobs(self, hidden: Tensor, rows: PromptRows) -> list[Logprobs]:
        """Some rows at a time, which bounds the memory of their logits."""
        found: list[Logprobs] = []
        for start in range(0, len(rows.targets), _PROMPT_ROWS_AT_ONCE):
            part = slice(start, start + _PROMPT_ROWS_AT_ONCE)
            tokens = torch.from_numpy(rows.token_index[part]).to(self._device)
            logits = self._model.logits(hidden.index_select(0, tokens))
            part_found = self._sampler.logprobs(logits, rows.targets[part], rows.num_logprobs[part])
            found += [one._replace(row=start + one.row) for one in part_found]
        return found

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _join(config: ParallelConfig) -> ParallelGroup:
    size = config.tensor_parallel_size
    if size > 1 and not torch.distributed.is_initialized():
        raise ValueError(
            f"tensor_parallel_size is {size}, but this process has not joined a torch.distributed "
            "group; use 1"
        )
    return ParallelGroup(config.rank, size)


def _device(config: DeviceConfig) -> torch.device:
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    return choose_device(config)


def _dtype(name: str, source: ModelSource, device: torch.device) -> torch.dtype:
    """`auto` is the model's own, with what the device has instead of its 16 bits."""
    if name != "auto":
        return _DTYPES[name]
    return dtype_for_half(device) if source.is_half else torch.float32


def _model_info(
    model_config: ModelConfig, config: ServedConfig, source: ModelSource, dtype: torch.dtype
) -> ModelInfo:
    length = model_config.max_model_len or config.max_position
    if length > config.max_position:
        raise ModelError(
            f"max_model_len is {length}; {source.name} allows at most {config.max_position}"
        )
    return ModelInfo(
        name=model_config.served_name or source.name,
        architecture=config.architecture,
        dtype=str(dtype).removeprefix("torch."),
        vocab_size=config.vocab_size,
        max_model_len=length,
        eos_token_ids=source.eos_token_ids(),
    )


def _attention_shape(
    config: ServedConfig, block_size: int, placement: Placement, group: ParallelGroup
) -> AttentionShape:
    return AttentionShape(
        num_layers=config.num_layers,
        num_heads=group.divide(config.num_heads, "num_attention_heads"),
        num_kv_heads=kv_heads_per_rank(config.num_kv_heads, group),
        head_size=config.head_size,
        block_size=block_size,
        scale=config.scale,
        sliding_windows=config.sliding_windows or (None,) * config.num_layers,
        soft_cap=config.attention_soft_cap if isinstance(config, SoftCapped) else None,
        dtype=placement.dtype,
        device=placement.device,
    )
