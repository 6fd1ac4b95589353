"""The groups of layers of a native program, by the settings of a worker."""

from typing import Any

from signalbox_contract.cache_groups import FULL_GROUP, STATE, CacheGroup
from signalbox_kernels.recurrent import StateLayout
from signalbox_worker.config import ModelError
from signalbox_worker.kv.store_url import ObjectAddress, store_address
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.kv_places import cache_groups


def groups_of(
    opened: OpenedModel, settings: RunnerConfig, *, max_model_len: int
) -> tuple[CacheGroup, ...]:
    """Returns the groups of layers that attend. Stages have blocks of all layers, and so have
    object stores, whose runs of blocks end in each group elsewhere; encoders have none. Raises
    ModelError for settings that recurrent layers do not take."""
    if opened.shape.has_states:
        _check_states(opened, settings)
    is_staged = settings.parallel.pipeline_parallel_size > 1
    url = settings.shared.kv_store
    has_objects = url is not None and isinstance(store_address(url), ObjectAddress)
    if is_staged or has_objects or not isinstance(opened.config, DecoderConfig):
        return (FULL_GROUP,)
    return cache_groups(opened.config, max_model_len=max_model_len)


def _check_states(opened: OpenedModel, settings: RunnerConfig) -> None:
    taken = {
        "--kv-disk": settings.disk.has_disk,
        "--kv-store": settings.shared.has_server,
        "--lora": bool(settings.model.adapters),
        "--adapter-dir": settings.model.adapter_dir is not None,
        "--max-lora-rank": settings.model.max_lora_rank is not None,
        "--runner pooling": opened.pooling is not None,
    }
    if flag := next((name for name, is_set in taken.items() if is_set), None):
        raise ModelError(
            f"{flag} does not work with the recurrent layers of {opened.shape.architecture}; "
            "leave it out"
        )


def with_states(
    groups: tuple[CacheGroup, ...], config: Any, *, block_bytes: int
) -> tuple[CacheGroup, ...]:
    """Returns groups of layers with that of the recurrent ones, if there are any.

    Args:
        config: of any family that is computed natively.
    """
    kept = getattr(config, "recurrence", None)
    if kept is None:
        return groups
    layers = tuple(sorted(config.recurrent_layers))
    layout = StateLayout(block_bytes)
    for _ in layers:
        layout.place_convolution(kept.channels, kept.kernel)
        if kept.matrix_rows:
            layout.place_scan(kept.matrix_rows, kept.matrix_columns)
    states = CacheGroup(kind=STATE, layers=layers, state_blocks=layout.num_pages)
    return (*groups, states)
