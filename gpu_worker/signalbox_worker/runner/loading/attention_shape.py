"""Derives what a shard's attention computes and stores from the model and the worker's settings."""

from signalbox_worker.config import AUTO_BLOCK_SIZE, CacheConfig, ModelError
from signalbox_worker.device.device_choice import compute_capability
from signalbox_worker.device.division import kv_heads_per_rank
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.files.checkpoints.kv_scales import check_kv_scheme, read_kv_scales
from signalbox_worker.models.attention import AttentionShape
from signalbox_worker.models.layers import ParallelGroup, Placement
from signalbox_worker.runner.loading.dummy_source import DummySource
from signalbox_worker.runner.loading.opened_model import OpenedModel

_INT8, _FP8 = "int8", "fp8"
_FP8_CAPABILITY = (8, 9)
"""First compute capability whose instructions convert to and from E4M3."""


def attention_shape(
    opened: OpenedModel,
    cache_config: CacheConfig,
    placement: Placement,
    group: ParallelGroup,
    native_unsupported_reason: str,
) -> AttentionShape:
    """Raises ModelError for a `kv_cache_dtype` that the model or the device does not take."""
    model, kv_dtype = opened.shape, cache_config.kv_cache_dtype
    _check_kv_dtype(opened, kv_dtype, placement, native_unsupported_reason)
    stage = group.stage(model.num_layers)
    return AttentionShape(
        num_layers=len(stage),
        num_heads=group.divide(model.num_heads, "num_attention_heads"),
        num_kv_heads=kv_heads_per_rank(model.num_kv_heads, group.size),
        head_size=model.head_size,
        block_size=cache_config.block_size or AUTO_BLOCK_SIZE,
        scale=model.scale,
        sliding_windows=tuple(model.sliding_windows[i] for i in stage.indices),
        soft_cap=model.attention_soft_cap,
        has_sinks=model.has_sinks,
        is_bidirectional=model.is_bidirectional,
        dtype=placement.dtype,
        device=placement.device,
        fp8_scales=_fp8_scales(opened, stage) if kv_dtype == _FP8 else None,
        has_int8_cache=kv_dtype == _INT8,
    )


def _check_kv_dtype(
    opened: OpenedModel, kv_dtype: str, placement: Placement, native_unsupported_reason: str
) -> None:
    """Raises ModelError for a type that is neither activations' nor of 8 bits, for FP8 on a GPU
    without it or with other scales, and for any beside an encoder."""
    dtype = str(placement.dtype).removeprefix("torch.")
    if kv_dtype not in ("auto", dtype, _INT8, _FP8):
        raise ModelError(
            f"kv_cache_dtype is {kv_dtype!r}, but PyTorch's attention takes K and V in the type of "
            f"activations, which is {dtype}, and the native implementation is not used: "
            f"{native_unsupported_reason}; use 'auto', 'int8' or 'fp8'"
        )
    capability = compute_capability(placement.device)
    if kv_dtype == _FP8 and capability is not None and capability < _FP8_CAPABILITY:
        raise ModelError(
            "kv_cache_dtype is 'fp8', which takes a GPU of compute capability 8.9 or later, and "
            f"{placement.device} has {'.'.join(map(str, capability))}; use 'auto'"
        )
    check_kv_scheme(opened.source.config, kv_dtype)
    if opened.shape.is_bidirectional and kv_dtype not in ("auto", dtype):
        raise ModelError(
            f"kv_cache_dtype is {kv_dtype!r}, but {opened.spec.architecture} keeps no K and V; use "
            "'auto'"
        )


def _fp8_scales(opened: OpenedModel, stage: StageLayers) -> tuple[tuple[float, float], ...]:
    """Returns those of the checkpoint; made-up weights have none."""
    source = opened.source
    stored = {} if isinstance(source, DummySource) else source.stored()
    scales = read_kv_scales(stored, stage.total)
    return tuple(scales[i] for i in stage.indices)
