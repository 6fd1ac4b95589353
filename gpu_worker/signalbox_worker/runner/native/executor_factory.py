"""Loads a model that runs natively, or a rank's shard of it, with its executor."""

from signalbox_contract.startup import ReportProgress
from signalbox_kernels.group import Group
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.executor import NativeExecutor, NativePoolingExecutor
from signalbox_worker.runner.native.native_encoder import load_encoder_natively
from signalbox_worker.runner.native.native_model import load_natively


def load_native_executor(
    opened: OpenedModel,
    config: RunnerConfig,
    *,
    layers: StageLayers,
    group: Group | None,
    progress: ReportProgress,
) -> NativeExecutor:
    """Raises ModelError.

    Args:
        layers: those of the rank's stage.
        group: tensor-parallel ranks of the stage; None if there is one.
    """
    if isinstance(opened.config, EncoderConfig):
        loaded = load_encoder_natively(opened, config, progress=progress)
    else:
        loaded = load_natively(opened, config, layers=layers, group=group, progress=progress)
    if loaded.pooling is not None:
        return NativePoolingExecutor(loaded, layers, loaded.pooling)
    draws = config.parallel.tensor_rank == 0
    return NativeExecutor(loaded, layers, group=group, draws=draws)
