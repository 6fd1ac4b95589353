"""Decides before anything is loaded whether a native program runs a model.

It looks at configurations, device files and the instruction set. PyTorch is asked only where there
is a device that it may be able to use.
"""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from signalbox_kernels.native import NativeUnavailable, best_isa
from signalbox_kernels.structs import (
    MOST_EXPERTS,
    MOST_INPUTS,
    MOST_STATE_ROWS,
    PANEL,
    UNIT_COLUMNS,
)
from signalbox_worker.config import (
    USUAL_BLOCK_SIZE,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ModelError,
)
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.models.gemma4_config import Gemma4Config
from signalbox_worker.models.mixture_config import MoeConfig
from signalbox_worker.models.recurrence import Recurrence
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.native.native_encoder import why_no_encoder
from signalbox_worker.runner.native.rank_memory import why_no_memory
from signalbox_worker.runner.native.tensor_share import why_not_divided
from signalbox_worker.runner.native.weight_shapes import EXPERTS

logger = logging.getLogger(__name__)

BACKENDS = ("attention_backend", "sampling_backend", "linear_backend")
"""Settings of which another value than "auto" and "native" needs PyTorch."""
_GRAIN = 16  # tokens and head elements come in vectors of so many
_DEVICE_FILES = tuple(
    map(Path, ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dxg", "/dev/nvmap", "/dev/kfd"))
)
"""Device files of what PyTorch calls CUDA: NVIDIA, also in WSL and on Tegra, and AMD."""


def native_unsupported_reason(
    opened: OpenedModel,
    model_config: ModelConfig,
    cache_config: CacheConfig,
    device_config: DeviceConfig,
    parallel: ParallelConfig,
) -> str | None:
    """Says what keeps a rank's shard of a model from running natively; None if it can, and is to.

    Raises ValueError if it must, or if SIGNALBOX_ISA names no instruction set; ModelError if there
    are neither native kernels nor PyTorch.
    """
    reason = why_not_meant(opened, model_config, cache_config, device_config, parallel)
    reason = reason or why_no_library(warn=device_config.cpu_backend == "auto")
    if reason is not None and opened.shape.has_states:
        raise ModelError(
            f"{opened.shape.architecture} has recurrent layers, which are computed natively alone, "
            f"but {reason}; change that, or use another model"
        )
    if reason is not None and device_config.cpu_backend == "native":
        raise ValueError(f"cpu_backend is 'native', but {reason}; use 'auto' or 'torch'")
    return reason


def why_not_meant(
    opened: OpenedModel | None,
    model_config: ModelConfig,
    cache_config: CacheConfig,
    device_config: DeviceConfig,
    parallel: ParallelConfig,
) -> str | None:
    """Says what of the settings and the model keeps it from running natively, whatever libraries
    there are.

    Args:
        opened: None for a model that is not here yet, of which settings alone are known.
    """
    if device_config.cpu_backend == "torch":
        return "cpu_backend is 'torch'"
    for name in BACKENDS:
        value = getattr(device_config, name)
        if value not in ("auto", "native"):
            return f"{name} is {value!r}"
    if not _is_on_cpu(device_config):
        return "the device is cuda, and native programs run on CPUs"
    reason = _why_not_as_set(model_config, cache_config)
    if reason is not None or opened is None:
        return reason
    return _why_no_program(opened, model_config, cache_config) or _why_no_share(opened, parallel)


def may_have_gpu(config: DeviceConfig) -> bool:
    """Says whether PyTorch alone can tell which device is meant."""
    has_files = any(file.exists() for file in _DEVICE_FILES)
    return config.device == "auto" and has_files and find_spec("torch") is not None


def _is_on_cpu(config: DeviceConfig) -> bool:
    if not may_have_gpu(config):
        return config.device != "cuda"
    from signalbox_worker.device.device_choice import choose_device  # imports torch: seconds

    return choose_device(config).type == "cpu"


def why_no_library(*, warn: bool) -> str | None:
    """Says why there are no native kernels; None if they are loaded, or were built now.

    Raises ModelError if there is no PyTorch either.
    """
    try:
        best_isa()
    except NativeUnavailable as error:
        if find_spec("torch") is None:
            raise ModelError(
                f"no native CPU kernels: {error}; mend that, or pip install"
                " 'signalbox-serving[worker]' to compute in PyTorch, more slowly"
            ) from error
        if warn:
            logger.warning("no native CPU kernels: %s; PyTorch computes, more slowly", error)
        return str(error)
    return None


def _why_no_share(opened: OpenedModel, parallel: ParallelConfig) -> str | None:
    """Says why tensor-parallel ranks cannot compute this model natively; None if they can."""
    if parallel.tensor_parallel_size == 1:
        return None
    config = opened.config
    if not isinstance(config, DecoderConfig):
        return "native encoders are computed by one rank"
    return why_no_memory(parallel) or why_not_divided(config, parallel.tensor_parallel_size)


def _why_not_as_set(model_config: ModelConfig, cache_config: CacheConfig) -> str | None:
    """Says which setting of the model's or its cache no native program takes."""
    block_size = cache_config.block_size or USUAL_BLOCK_SIZE
    if model_config.model_impl == "transformers":
        return "model_impl is 'transformers'"
    if model_config.dtype == "float16":
        return "it computes in float32 and bfloat16, not in float16"
    if block_size % _GRAIN:
        return f"block size {block_size} is no multiple of {_GRAIN}"
    return None


def _why_no_program(
    opened: OpenedModel, model_config: ModelConfig, cache_config: CacheConfig
) -> str | None:
    """Says what the native path lacks for this model; None if it can run it."""
    shape = opened.shape
    if shape.is_bidirectional and cache_config.kv_cache_dtype != "auto":
        return "models whose tokens see later ones keep no K and V"
    if isinstance(opened.config, EncoderConfig):
        if (reason := why_no_encoder(opened, model_config)) is not None:
            return reason
    elif not opened.spec.is_llama:
        refusal = opened.spec.refusal and f" as it is configured: {opened.spec.refusal}"
        return f"no native program computes {opened.spec.architecture}{refusal}"
    elif opened.config.has_inner_norms and opened.config.norm_is_centred:
        return "it adds no results of LayerNorms to hidden states"
    elif (reason := _why_no_mixture(opened) or _why_no_layers(opened.config)) is not None:
        return reason
    has_latents = getattr(opened.config, "latents", None) is not None
    if has_latents and cache_config.kv_cache_dtype in ("int8", "fp8"):
        return "its cache of latents takes no codes of 8 bits"
    if shape.head_size % _GRAIN:
        return f"head size {shape.head_size} is no multiple of {_GRAIN}"
    return None


def _why_no_layers(config: Any) -> str | None:
    """Says which sizes of layers that differ from each other are not computed; None if all are."""
    if (kept := getattr(config, "recurrence", None)) is not None:
        return _why_no_recurrence(kept)
    if not isinstance(config, Gemma4Config):
        return None
    if config.full_head_size % _GRAIN:
        return f"head size {config.full_head_size} is no multiple of {_GRAIN}"
    if config.experts is not None and config.experts.num_experts > MOST_EXPERTS:
        return f"it has more than {MOST_EXPERTS} experts in a layer"
    if config.layer_input_size % PANEL:
        return f"hidden_size_per_layer_input {config.layer_input_size} is no multiple of {PANEL}"
    return None


def _why_no_recurrence(kept: Recurrence) -> str | None:
    if kept.kernel > MOST_INPUTS:
        return f"its convolutions sum {kept.kernel} inputs, more than {MOST_INPUTS}"
    if kept.channels % UNIT_COLUMNS:
        return f"the {kept.channels} channels of a layer are no multiple of {UNIT_COLUMNS}"
    rows, columns = kept.matrix_rows, kept.head_columns
    if rows % UNIT_COLUMNS or columns % UNIT_COLUMNS or rows > MOST_STATE_ROWS:
        return (
            f"states of [{rows}, {columns}] are no multiples of {UNIT_COLUMNS}, of up to "
            f"{MOST_STATE_ROWS} rows"
        )
    return None


def _why_no_mixture(opened: OpenedModel) -> str | None:
    """Says what keeps experts from being multiplied by one op; None of a model without."""
    config, source = opened.config, opened.source
    if not isinstance(config, MoeConfig) or isinstance(source, DummySource):
        return None
    if config.num_experts > MOST_EXPERTS:
        return f"it has more than {MOST_EXPERTS} experts in a layer"
    if config.has_stacks or config.has_transposed_stacks:  # of one type each
        return None
    kinds = dict[str, Any]()
    for name, tensor in source.stored().items():
        block, is_expert, rest = name.partition(f".{EXPERTS}.")
        place = f"{block}.{rest.partition('.')[2]}"
        kind = (tensor.blocks and tensor.blocks.type, tensor.form, tensor.rounding, tensor.dtype)
        if is_expert and kinds.setdefault(place, kind) != kind:
            return f"experts of {block} are stored in several types or round by scales of their own"
    return None
