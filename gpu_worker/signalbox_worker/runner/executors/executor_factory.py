"""Loads a model that PyTorch runs, and chooses the executor of its steps."""

from signalbox_contract.startup import ReportProgress
from signalbox_worker.device.device_choice import recorder_for
from signalbox_worker.device.keys import Keys
from signalbox_worker.device.stage_layers import StageLayers
from signalbox_worker.runner.executors.async_executor import AsyncExecutor
from signalbox_worker.runner.executors.pooling_executor import PoolingExecutor
from signalbox_worker.runner.executors.step_graphs import DevicePlanning
from signalbox_worker.runner.executors.torch_executor import StageExecutor, TorchExecutor
from signalbox_worker.runner.loading.loaded_model import LoadedModel, load_model
from signalbox_worker.runner.loading.opened_model import OpenedModel
from signalbox_worker.runner.loading.runner_config import RunnerConfig


def load_executor(
    opened: OpenedModel,
    config: RunnerConfig,
    *,
    keys: Keys | None,
    layers: StageLayers,
    native_unsupported_reason: str,
    progress: ReportProgress,
) -> TorchExecutor:
    """Loads a model, or a rank's shard of it.

    Args:
        keys: where tensor-parallel ranks meet.
        layers: those of this rank's pipeline stage.
        native_unsupported_reason: what keeps the model from running natively, for messages.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    loaded = load_model(
        opened,
        config,
        keys=keys,
        layers=layers,
        progress=progress,
        native_unsupported_reason=native_unsupported_reason,
    )
    return _make_executor(loaded, config)


def _make_executor(loaded: LoadedModel, config: RunnerConfig) -> TorchExecutor:
    pooling = loaded.opened.pooling
    if pooling is not None:
        pooler = pooling.outputs.make_pooler(loaded.opened.source)
        return PoolingExecutor(loaded, config.cache, pooler)
    if not loaded.stage.is_whole:
        return StageExecutor(loaded, config.cache)
    recorder = None if config.device.enforce_eager else recorder_for(loaded.device)
    on_device = loaded.device.type != "cpu" or recorder is not None
    if not (on_device and isinstance(loaded.attention, DevicePlanning)):
        return TorchExecutor(loaded, config.cache)
    executor = AsyncExecutor(loaded, config.cache, loaded.attention)
    if recorder is not None:
        executor.use_graphs(recorder, max_tokens=config.device.max_cudagraph_capture_size)
    return executor
