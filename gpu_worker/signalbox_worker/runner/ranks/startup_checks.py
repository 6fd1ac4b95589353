"""Checks before a model is loaded: the packages that it needs, and the store that is named."""

from signalbox_contract.startup import ignore_progress
from signalbox_kernels.build import can_build
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.files.checkpoints.quantization import choose_quantization
from signalbox_worker.kv.store_config import DiskConfig, SharedConfig
from signalbox_worker.missing_packages import has_pytorch, require, require_pytorch
from signalbox_worker.runner.loading.model_source import find_model, naming
from signalbox_worker.runner.loading.opened_model import (
    THROUGH_PYTORCH,
    OpenedModel,
    open_with_config,
)
from signalbox_worker.runner.native.eligibility import BACKENDS, why_no_library, why_not_meant


def check_packages(
    model: ModelConfig, cache: CacheConfig, device: DeviceConfig, parallel: ParallelConfig
) -> None:
    """Raises ModelError that names the extra which is missing; comes before any process starts.

    A worker looks at a model on the hub once it is fetched. Also raises what opening a model does.
    """
    for name in BACKENDS:
        if str(value := getattr(device, name)).startswith("triton"):
            require("triton", extra="gpu", why=f"{name} is {value!r}")
    if has_pytorch():
        return
    with naming(model.model):
        opened = open_with_config(model, ignore_progress) if find_model(model) else None
        why_not = why_not_meant(opened, model, cache, device, parallel)
        if why_not is not None:
            check_pytorch(model, device, opened, why_not)
        if opened is not None and opened.source.directory and model.load_format != "dummy":
            opened.tokenizer_files()
            opened.source.stored()
        if not can_build():
            why_no_library(warn=False)


def check_pytorch(
    model: ModelConfig, device: DeviceConfig, opened: OpenedModel | None, why_not: str
) -> None:
    """Raises ModelError if PyTorch is to run a model, and is not installed, or would refuse it.

    Args:
        opened: None for a model that is not here yet.
        why_not: what keeps it from running natively.
    """
    if opened is not None and device.device != "cuda" and not has_pytorch():
        choose_quantization(model, opened.source, why_not)  # refuses what PyTorch would
    require_pytorch(f"{THROUGH_PYTORCH}, not natively ({why_not})")


def check_store(disk: DiskConfig, shared: SharedConfig) -> None:
    """Refuses a folder, a server, or a file for it, that cannot be used; comes before a model is
    loaded.

    Raises ModelError, ValueError or OSError.
    """
    if disk.kv_disk is not None:
        from signalbox_worker.kv.disk.store_folder import StoreFolder

        StoreFolder(disk.kv_disk).close()
    if shared.has_server:
        from signalbox_worker.kv.shared.shared_tier import check_config

        check_config(shared)
