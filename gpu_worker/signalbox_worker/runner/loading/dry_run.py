"""Builds a model of PyTorch without its weights, to find what is refused and what K and V take."""

from dataclasses import replace

import torch

from signalbox_worker.config import USUAL_BLOCK_SIZE
from signalbox_worker.device.device_choice import choose_device, compute_capability
from signalbox_worker.files.checkpoints.quantization import choose_quantization
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.runner.loading.attention_shape import attention_shape
from signalbox_worker.runner.loading.layer_partition import stage_layers
from signalbox_worker.runner.loading.loaded_model import dtype_of, refuse_int16
from signalbox_worker.runner.loading.opened_model import BuiltModel, OpenedModel, window
from signalbox_worker.runner.loading.pooling_model import not_pooled
from signalbox_worker.runner.loading.runner_config import RunnerConfig


def built_in_pytorch(
    opened: OpenedModel, config: RunnerConfig, native_unsupported_reason: str
) -> BuiltModel:
    """Builds what `load_model` would. Raises ModelError or ValueError, as that does."""
    model_config, parallel = config.model, config.parallel
    refuse_int16(model_config, native_unsupported_reason)
    device = choose_device(config.device, parallel)
    placement = Placement(device, dtype_of(model_config.dtype, opened.source, device))
    group = replace(
        ParallelGroup(size=parallel.tensor_parallel_size), layers=stage_layers(opened, parallel)
    )
    block_size = config.cache.block_size or USUAL_BLOCK_SIZE
    cache = config.cache.model_copy(update={"block_size": block_size})
    attention = attention_shape(opened, cache, placement, group, native_unsupported_reason)
    quantization = choose_quantization(
        model_config, opened.source, native_unsupported_reason, compute_capability(device)
    )
    nowhere = Placement(torch.device("meta"), placement.dtype)
    with torch.inference_mode():
        model = opened.spec.make(opened.config, window(model_config, opened), nowhere, group)
    if opened.pooling is not None and not model.pools:
        raise not_pooled(opened.shape.architecture)
    return BuiltModel(
        device=str(device),
        device_bytes=_usable_bytes(device, config.cache.gpu_memory_utilization),
        dtype=str(placement.dtype).removeprefix("torch."),
        block_bytes=0 if opened.shape.is_bidirectional else attention.block_bytes,
        quantization=quantization,
    )


def _usable_bytes(device: torch.device, utilization: float) -> int | None:
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    return min(free, int(total * utilization))
