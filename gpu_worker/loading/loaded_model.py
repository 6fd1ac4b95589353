"""Puts together what a runner runs: model and weights, program or attention backend, sampler."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from contract.model import ModelInfo
from contract.startup import ReportProgress, StartupPhase, StartupProgress
from gpu_worker.attention import AttentionBackend, AttentionShape, choose_attention_backend
from gpu_worker.checkpoints.quantization import choose_quantization, describe_form
from gpu_worker.config import (
    AUTO_BLOCK_SIZE,
    USUAL_BLOCK_SIZE,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ModelError,
    ParallelConfig,
)
from gpu_worker.device.device_choice import choose_device, dtype_for_half
from gpu_worker.device.memory import bytes_in_use, tensor_bytes
from gpu_worker.device.process_group import join
from gpu_worker.executors.native_program import make_program, why_not_natively
from gpu_worker.layers import ParallelGroup, Placement
from gpu_worker.layers.linear import kv_heads_per_rank
from gpu_worker.loading.dummy_weights import dummy_placement
from gpu_worker.loading.fingerprint import fingerprint
from gpu_worker.loading.generation_config import read_generation_config, within_vocabulary
from gpu_worker.loading.model_source import ModelSource, open_model
from gpu_worker.loading.weight_loader import load_weights
from gpu_worker.models import Model, ServedConfig, SoftCapped, Stretched, find_model
from gpu_worker.models.plugins import import_plugins
from gpu_worker.models.registry import ModelSpec
from gpu_worker.sampling.sampler import Sampler
from gpu_worker.sampling.sampler_factory import make_sampler
from signalbox_kernels import build
from signalbox_kernels.program import Program

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to run, without a cache."""

    info: ModelInfo
    source: ModelSource
    device: torch.device
    model: Model
    """Empty if its weights are in `program`."""
    program: Program | None
    """Native program that runs whole steps on a CPU; None if PyTorch does."""
    attention: AttentionBackend
    block_size: int
    """Tokens in a block; the attention backend chooses it unless it is configured."""
    sampler: Sampler[Tensor]
    group: ParallelGroup
    weights_bytes: int
    others_bytes: int
    """Bytes of the device that were in use before this process."""


def load_model(
    model_config: ModelConfig,
    cache_config: CacheConfig,
    parallel_config: ParallelConfig,
    device_config: DeviceConfig,
    *,
    progress: ReportProgress,
) -> LoadedModel:
    """Raises ModelError, ValueError or MemoryError with what is wrong and the remedy."""
    device = _device(device_config, parallel_config)
    others_bytes = bytes_in_use(device)
    build.on_compiled = partial(_report_compiled, progress)
    group = join(parallel_config, device)
    source = open_model(model_config, progress)
    spec = _find(model_config, source)
    config = spec.read_config(source.config)
    placement = Placement(device, _dtype(model_config.dtype, source, device))
    if model_config.load_format == "dummy":
        placement = dummy_placement(placement)
    info = _model_info(model_config, config, source, placement.dtype)
    with _out_of_memory_named(info, device), torch.inference_mode():
        model = spec.build(config, info.max_model_len, placement, group)
        program = _load(
            model,
            source,
            model_config,
            cache_config,
            device_config,
            placement=placement,
            group=group,
            max_model_len=info.max_model_len,
            progress=progress,
        )
    shape = _attention_shape(config, cache_config.block_size or AUTO_BLOCK_SIZE, placement, group)
    attention = choose_attention_backend(device_config.attention_backend, shape)
    loaded = LoadedModel(
        info=info,
        source=source,
        device=device,
        model=model,
        program=program,
        attention=attention.backend,
        block_size=attention.block_size,
        sampler=make_sampler(
            device_config,
            vocab_size=config.vocab_size,
            placement=placement,
            program=program,
            group=group,
        ),
        group=group,
        weights_bytes=program.weights_bytes if program else tensor_bytes(model),
        others_bytes=others_bytes,
    )
    logger.info("%s is loaded on %s in %s", info.name, device, info.dtype)
    return loaded


def _report_compiled(progress: ReportProgress, num_done: int, num_total: int) -> None:
    progress(StartupProgress(StartupPhase.COMPILE, num_done, num_total))


def _find(model_config: ModelConfig, source: ModelSource) -> ModelSpec:
    import_plugins(model_config.plugins, source.config)
    return find_model(
        source.config,
        impl=model_config.model_impl,
        directory=source.directory,
        trust_remote_code=model_config.trust_remote_code,
    )


@contextlib.contextmanager
def _out_of_memory_named(info: ModelInfo, device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryError(
            f"the weights of {info.name} do not fit on {device}; "
            "use a smaller model, a smaller dtype or a larger tensor_parallel_size"
        ) from None


def _load(
    model: Model,
    source: ModelSource,
    model_config: ModelConfig,
    cache_config: CacheConfig,
    device_config: DeviceConfig,
    *,
    placement: Placement,
    group: ParallelGroup,
    max_model_len: int,
    progress: ReportProgress,
) -> Program | None:
    """Loads the weights, into a native program if there can be one."""
    block_size = cache_config.block_size or USUAL_BLOCK_SIZE
    why_not = why_not_natively(
        model, device_config, placement=placement, group=group, block_size=block_size
    )
    quantization = choose_quantization(model_config, source, why_not)
    logger.info("%s", describe_form(source.sizes, placement.dtype, quantization, why_not))
    load_weights(model, source, progress, quantization=quantization, pack=why_not is not None)
    if why_not is not None:
        return None
    return make_program(
        model,
        device_config,
        placement=placement,
        quantization=quantization,
        block_size=block_size,
        max_model_len=max_model_len,
    )


def _device(config: DeviceConfig, parallel: ParallelConfig) -> torch.device:
    """Makes the device the process's current one, which NCCL and the name "cuda" refer to."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = choose_device(config, parallel)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _dtype(name: str, source: ModelSource, device: torch.device) -> torch.dtype:
    """`auto` is the model's own, with what the device has instead of its 16 bits."""
    if name != "auto":
        return _DTYPES[name]
    return dtype_for_half(device) if source.is_half else torch.float32


def _model_info(
    model_config: ModelConfig, config: ServedConfig, source: ModelSource, dtype: torch.dtype
) -> ModelInfo:
    length = model_config.max_model_len or _usual_length(config)
    if length > config.max_position:
        raise ModelError(
            f"max_model_len is {length}; {source.name} allows at most {config.max_position}"
        )
    generation = read_generation_config(model_config, source)
    return ModelInfo(
        name=model_config.served_name or source.name,
        architecture=config.architecture,
        dtype=str(dtype).removeprefix("torch."),
        vocab_size=config.vocab_size,
        max_model_len=length,
        eos_token_ids=within_vocabulary(generation.eos_token_ids, config.vocab_size),
        sampling_defaults=generation.defaults,
        fingerprint=fingerprint(source.files()),
    )


def _usual_length(config: ServedConfig) -> int:
    if not isinstance(config, Stretched) or config.usual_length == config.max_position:
        return config.max_position
    logger.info(
        "max_model_len is %d, the original window; --max-model-len takes up to %d, with the long "
        "factors of the rotation for all prompts",
        config.usual_length,
        config.max_position,
    )
    return config.usual_length


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
