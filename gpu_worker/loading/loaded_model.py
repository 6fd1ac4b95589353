"""Puts together what PyTorch runs: model and weights, attention backend, sampler."""

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from contract.model import Arithmetic, ModelInfo
from contract.startup import ReportProgress
from gpu_worker.attention import AttentionBackend, AttentionShape, choose_attention_backend
from gpu_worker.batch.runner_protocol import BackendInUse
from gpu_worker.batch.stage_layers import StageLayers
from gpu_worker.checkpoints.kv_scales import check_kv_scheme, read_kv_scales
from gpu_worker.checkpoints.quantization import (
    Quantization,
    choose_quantization,
    describe_form,
)
from gpu_worker.config import (
    AUTO_BLOCK_SIZE,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ModelError,
    ParallelConfig,
)
from gpu_worker.device.device_choice import choose_device, compute_capability, dtype_for_half
from gpu_worker.device.division import kv_heads_per_rank
from gpu_worker.device.keys import Keys
from gpu_worker.device.memory import bytes_in_use, tensor_bytes
from gpu_worker.device.process_group import join
from gpu_worker.layers import ParallelGroup, Placement
from gpu_worker.loading.adapter_loader import AdapterLoader
from gpu_worker.loading.dummy_source import DummySource
from gpu_worker.loading.dummy_weights import dummy_placement
from gpu_worker.loading.model_source import ModelSource
from gpu_worker.loading.opened_model import OpenedModel, model_info, open_with_config
from gpu_worker.loading.weight_loader import LoadsItself, load_weights
from gpu_worker.models import HasSinks, Model, Pooled, ServedConfig, SoftCapped, Staged
from gpu_worker.models.few_rows import choose_products
from gpu_worker.pooling.pooler import Pooler
from gpu_worker.sampling.sampler import Sampler
from gpu_worker.sampling.sampler_factory import describe_sampler, make_sampler
from signalbox_kernels.torch import registry
from signalbox_kernels.triton.kernel_cache import use_kernel_cache

logger = logging.getLogger(__name__)

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_INT8, _FP8 = "int8", "fp8"
_FP8_CAPABILITY = (8, 9)
"""First compute capability whose instructions convert to and from E4M3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model that is ready to run, without a cache."""

    info: ModelInfo
    opened: OpenedModel
    device: torch.device
    model: Model
    adapters: AdapterLoader
    attention: AttentionBackend
    block_size: int
    """Tokens in a block; the attention backend chooses it unless it is configured."""
    sampler: Sampler[Tensor]
    pooler: Pooler | None
    """None of a model that generates."""
    backends: tuple[BackendInUse, ...]
    group: ParallelGroup
    stage: StageLayers
    hidden_size: int
    """Width of the hidden states between stages; 0 for a model that has none."""
    dtype: torch.dtype
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
    keys: Keys | None,
    layers: StageLayers | None,
    opened: OpenedModel | None,
    why_not_natively: str,
) -> LoadedModel:
    """Loads a model that is opened, or opens it.

    Args:
        keys: where tensor-parallel ranks meet.
        layers: those of this rank's pipeline stage; None has all.
        why_not_natively: what keeps the model from running natively.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    device = _device(device_config, parallel_config)
    others_bytes = bytes_in_use(device)
    group = replace(join(parallel_config, device, keys), layers=layers)
    opened = opened or open_with_config(model_config, progress)
    source, config = opened.source, opened.config
    placement = Placement(device, _dtype(model_config.dtype, source, device))
    if model_config.load_format == "dummy":
        placement = dummy_placement(placement)
    info = model_info(model_config, opened, str(placement.dtype).removeprefix("torch."))
    kv_dtype, stage = cache_config.kv_cache_dtype, group.stage(config.num_layers)
    _check_kv_dtype(kv_dtype, info.dtype, why_not_natively, device)
    check_kv_scheme(source.config, kv_dtype)
    shape = _attention_shape(config, cache_config.block_size or AUTO_BLOCK_SIZE, placement, group)
    if kv_dtype == _FP8:
        scales = _fp8_scales(source, config.num_layers)
        shape = replace(shape, fp8_scales=tuple(scales[i] for i in stage.indices))
    shape = replace(shape, has_int8_cache=kv_dtype == _INT8)
    if shape.is_bidirectional and kv_dtype not in ("auto", info.dtype):
        raise ModelError(
            f"kv_cache_dtype is {kv_dtype!r}, but {info.architecture} keeps no K and V; use 'auto'"
        )
    attention = choose_attention_backend(device_config.attention_backend, shape)
    quantization = choose_quantization(
        model_config,
        source,
        why_not_natively,
        compute_capability(device),
        has_kernels=device.type != "cuda" or registry.has_own("fp8_linear", device),
    )
    with _out_of_memory_named(info, device), torch.inference_mode():
        model = opened.spec.build(config, info.max_model_len, placement, group)
        rounds = model_config.quantization != "none" and not isinstance(model, LoadsItself)
        line = describe_form(
            source.sizes, info.dtype, quantization, why_not_natively, rounds_activations=rounds
        )
        logger.info("%s", line)
        activations = source.sizes.activations if source.sizes is not None and rounds else ""
        products = choose_products(
            device_config.linear_backend,
            model,
            placement,
            num_ranks=group.size,
            is_quantised=quantization is not None or bool(activations),
        )
        load_weights(
            model,
            source,
            progress,
            quantization,
            rounds_activations=rounds,
            is_whole=stage.is_whole,
        )
        adapters = AdapterLoader(model, info.architecture, model_config, info.name, device, stage)
    arithmetic = _arithmetic(info.dtype, kv_dtype, quantization, activations, device)
    info = replace(info, arithmetic=arithmetic, adapters=adapters.slots.loaded)
    sampler = make_sampler(
        device_config, vocab_size=config.vocab_size, placement=placement, group=group
    )
    loaded = LoadedModel(
        info=info,
        opened=opened,
        device=device,
        model=model,
        adapters=adapters,
        attention=attention.backend,
        block_size=attention.block_size,
        sampler=sampler,
        pooler=None if opened.pooling is None else opened.pooling.make_pooler(source),
        backends=(
            BackendInUse("attention", attention.name, attention.is_last_resort),
            describe_sampler(sampler, device_config, device),
            BackendInUse("linear", products),
        ),
        group=group,
        stage=stage,
        hidden_size=config.hidden_size if isinstance(config, Staged) else 0,
        dtype=placement.dtype,
        weights_bytes=tensor_bytes(model),
        others_bytes=others_bytes,
    )
    logger.info(
        "%s is loaded on %s in %s, K and V in %s",
        info.name,
        device,
        info.dtype,
        str(shape.kv_dtype).removeprefix("torch."),
    )
    return loaded


@contextlib.contextmanager
def _out_of_memory_named(info: ModelInfo, device: torch.device) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise MemoryError(
            f"the weights of {info.name} do not fit on {device}; "
            "use a smaller model, a smaller dtype or a larger tensor_parallel_size"
        ) from None


def _device(config: DeviceConfig, parallel: ParallelConfig) -> torch.device:
    """Makes the device the process's current one, which NCCL and the name "cuda" refer to, and
    gives its compiler a folder."""
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    device = choose_device(config, parallel)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        use_kernel_cache(config.kernel_cache)
    return device


def _dtype(name: str, source: ModelSource, device: torch.device) -> torch.dtype:
    """`auto` is the model's own, with what the device has instead of its 16 bits."""
    if name != "auto":
        return _DTYPES[name]
    return dtype_for_half(device) if source.is_half else torch.float32


def _check_kv_dtype(kv_dtype: str, dtype: str, why_not_natively: str, device: torch.device) -> None:
    """Raises ModelError for K and V of a type that is neither activations' nor of 8 bits, and for
    FP8 on a GPU without it."""
    if kv_dtype not in ("auto", dtype, _INT8, _FP8):
        raise ModelError(
            f"kv_cache_dtype is {kv_dtype!r}, but PyTorch's attention takes K and V in the type of "
            f"activations, which is {dtype}, and the native implementation is not used: "
            f"{why_not_natively}; use 'auto', 'int8' or 'fp8'"
        )
    capability = compute_capability(device)
    if kv_dtype == _FP8 and capability is not None and capability < _FP8_CAPABILITY:
        raise ModelError(
            "kv_cache_dtype is 'fp8', which takes a GPU of compute capability 8.9 or later, and "
            f"{device} has {'.'.join(map(str, capability))}; use 'auto'"
        )


def _fp8_scales(source: ModelSource, num_layers: int) -> tuple[tuple[float, float], ...]:
    """Returns those of the checkpoint; made-up weights have none."""
    return read_kv_scales({} if isinstance(source, DummySource) else source.stored(), num_layers)


def _arithmetic(
    dtype: str,
    kv_dtype: str,
    quantization: Quantization | None,
    activations: str,
    device: torch.device,
) -> Arithmetic:
    """4 bits are decoded to `dtype` before they are multiplied; FP8 rounds activations too.

    Args:
        activations: type of codes that the checkpoint rounds them to, or empty.
    """
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        name = f"sm_{major}{minor}"
    else:
        name = torch.backends.cpu.get_cpu_capability().lower()
    stored = {_FP8: "fp8_e4m3", _INT8: _INT8}.get(kv_dtype, dtype)
    is_fp8 = quantization is not None and quantization.name == "fp8"
    factors = activations or ("fp8_e4m3" if is_fp8 else dtype)
    return Arithmetic(factors=factors, kernels=f"torch {name}", kv_cache_dtype=stored)


def _attention_shape(
    config: ServedConfig, block_size: int, placement: Placement, group: ParallelGroup
) -> AttentionShape:
    stage = group.stage(config.num_layers)
    windows = config.sliding_windows or (None,) * config.num_layers
    return AttentionShape(
        num_layers=len(stage),
        num_heads=group.divide(config.num_heads, "num_attention_heads"),
        num_kv_heads=kv_heads_per_rank(config.num_kv_heads, group.size),
        head_size=config.head_size,
        block_size=block_size,
        scale=config.scale,
        sliding_windows=tuple(windows[i] for i in stage.indices),
        soft_cap=config.attention_soft_cap if isinstance(config, SoftCapped) else None,
        has_sinks=isinstance(config, HasSinks) and config.has_sinks,
        is_bidirectional=isinstance(config, Pooled) and config.is_bidirectional,
        dtype=placement.dtype,
        device=placement.device,
    )
