"""The groups of layers of a native program, by the settings of a worker."""

from collections.abc import Sequence
from dataclasses import replace

from signalbox_contract.cache_groups import FULL_GROUP, STATE, CacheGroup
from signalbox_kernels.program import ProgramShape
from signalbox_kernels.recurrent import StateLayout
from signalbox_worker.config import ModelError
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.kv.store_url import ObjectAddress, store_address
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.runner.loading.layer_partition import stages_of
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.kv_places import cache_groups, kv_places
from signalbox_worker.runner.native.tensor_share import TensorShare


def groups_of(
    opened: OpenedModel, settings: RunnerConfig, *, max_model_len: int
) -> tuple[CacheGroup, ...]:
    """Returns the groups of layers that attend. Stages have one of all layers, and so have object
    stores, whose runs of blocks end in each group elsewhere; encoders have none. Raises ModelError
    for settings that recurrent layers do not take."""
    url = settings.shared.kv_store
    has_objects = url is not None and isinstance(store_address(url), ObjectAddress)
    if opened.shape.has_states:
        _check_states(opened, settings, has_objects=has_objects)
    is_staged = settings.parallel.pipeline_parallel_size > 1
    if is_staged or has_objects or not isinstance(opened.config, DecoderConfig):
        return (FULL_GROUP,)
    return cache_groups(opened.config, max_model_len=max_model_len)


def _check_states(opened: OpenedModel, settings: RunnerConfig, *, has_objects: bool) -> None:
    parallel, config = settings.parallel, opened.config
    for number, stage in enumerate(stages_of(opened, parallel)):
        if not any(config.attends(index) for index in stage.indices):
            raise ModelError(
                f"no layer of stage {number}, {stage.start} to {stage.stop - 1}, attends, so "
                "that it has no blocks for states; give each stage one that does by "
                "pipeline_layer_partition"
            )
    taken = {
        "--kv-store with objects": has_objects,
        "--runner pooling": opened.pooling is not None,
    }
    if flag := next((name for name, is_set in taken.items() if is_set), None):
        raise ModelError(
            f"{flag} does not work with the recurrent layers of {opened.shape.architecture}; "
            "leave it out"
        )


def with_states(
    groups: tuple[CacheGroup, ...],
    share: TensorShare,
    stages: Sequence[StageLayers],
    shape: ProgramShape,
) -> tuple[CacheGroup, ...]:
    """Returns groups of layers with that of the recurrent ones, if there are any.

    A state has as many blocks on each rank: what the rank needs that needs most.

    Args:
        share: that of one rank.
        shape: that of the rank's program.
    """
    if share.whole.recurrence is None:
        return groups
    ranks = [replace(share, rank=rank).config for rank in range(share.size)]
    most = max(_num_pages(rank, stage, shape) for rank in ranks for stage in stages)
    layers = tuple(sorted(share.whole.recurrent_layers))
    return (*groups, CacheGroup(kind=STATE, layers=layers, state_blocks=most))


def _num_pages(config: DecoderConfig, stage: StageLayers, shape: ProgramShape) -> int:
    """Returns the blocks of a state of a stage's layers."""
    kept = config.recurrence
    assert kept is not None
    own = replace(shape, num_layers=kv_places(config, stage).num_layers)
    layout = StateLayout(own.block_bytes)
    for _ in config.recurrent_layers.intersection(stage.indices):
        layout.place_convolution(kept.channels, kept.kernel)
        if kept.matrix_rows:
            layout.place_scan(kept.matrix_rows, kept.matrix_columns)
    return layout.num_pages
