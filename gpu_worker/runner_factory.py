"""Makes the runner of a model: native, through PyTorch, or over several ranks.

The choice is made from the model's configuration before anything is loaded. PyTorch is imported
only for a model that needs it.
"""

from collections.abc import Callable

from contract.startup import ReportProgress, StartupPhase, StartupProgress, ignore_progress
from gpu_worker.batch.runner_protocol import Runner
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig
from gpu_worker.loading.missing_packages import needing_pytorch
from gpu_worker.loading.model_source import naming
from gpu_worker.loading.opened_model import THROUGH_PYTORCH, open_with_config
from gpu_worker.native.eligibility import why_not_natively
from gpu_worker.native.native_runner import NativeRunner


def make_runner(
    model_config: ModelConfig,
    cache_config: CacheConfig,
    *,
    device_config: DeviceConfig,
    tensor_parallel_size: int = 1,
    progress: ReportProgress = ignore_progress,
    on_lost: Callable[[str], None] = lambda _: None,
) -> Runner:
    """Loads a model.

    Args:
        on_lost: called on any thread when a rank is lost; every call raises DeviceLost then.

    Raises ModelError, ValueError or MemoryError with what is wrong and the remedy.
    """
    with naming(model_config.model):
        if tensor_parallel_size > 1:
            return _over_ranks(
                model_config,
                cache_config,
                tensor_parallel_size=tensor_parallel_size,
                device_config=device_config,
                progress=progress,
                on_lost=on_lost,
            )
        opened = open_with_config(model_config, progress)
        why_not = why_not_natively(opened, model_config, cache_config, device_config)
        if why_not is None:
            return NativeRunner(
                opened, model_config, cache_config, device_config, progress=progress
            )
        progress(StartupProgress(StartupPhase.IMPORT))
        with needing_pytorch(f"{THROUGH_PYTORCH}, not natively ({why_not})"):
            from gpu_worker.runner.model_runner import ModelRunner
        return ModelRunner(
            model_config,
            cache_config,
            device_config=device_config,
            progress=progress,
            opened=opened,
            why_not_natively=why_not,
        )


def _over_ranks(
    model_config: ModelConfig,
    cache_config: CacheConfig,
    *,
    tensor_parallel_size: int,
    device_config: DeviceConfig,
    progress: ReportProgress,
    on_lost: Callable[[str], None],
) -> Runner:
    if device_config.cpu_backend == "native":
        raise ValueError(
            "cpu_backend is 'native', but it does not divide a model over ranks; use 'auto' or"
            " 'torch'"
        )
    progress(StartupProgress(StartupPhase.IMPORT))
    with needing_pytorch(f"with tensor_parallel_size above 1 {THROUGH_PYTORCH}"):
        from gpu_worker.ranks.tensor_parallel_runner import TensorParallelRunner
    return TensorParallelRunner(
        model_config,
        cache_config,
        tensor_parallel_size=tensor_parallel_size,
        device_config=device_config,
        progress=progress,
        on_lost=on_lost,
    )
