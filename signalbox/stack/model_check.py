"""Checks a model and its adapters before any process starts: they exist, are complete, and fit.

It reads only the heads of files. The worker checks what PyTorch or the hub tells.
"""

from pathlib import Path

from signalbox.stack import machine_info
from signalbox.stack.gpu_assignment import visible_gpus
from signalbox_kernels.native import limit_permits_bfloat16
from signalbox_worker.config import GIB, INT16, ModelConfig
from signalbox_worker.device.ram import available_ram
from signalbox_worker.files.adapters.peft_adapter import check_adapter
from signalbox_worker.files.checkpoints.weight_sizes import OWN_TYPES, WeightSizes
from signalbox_worker.runner.loading.model_source import find_model, weight_sizes
from signalbox_worker.runner.ranks.startup_checks import check_packages
from signalbox_worker.service.worker_settings import EngineSettings

WORKER_BYTES = GIB // 2
"""Estimated bytes of a worker beside weights and KV cache: PyTorch, and the largest step."""

_SMALLER_FORMS = {
    "bfloat16": "--dtype bfloat16",
    "gguf": "--quantization gguf",
    "int8": "--quantization int8",
    "int4": "--quantization int4",
}
"""Flags that take less memory than float32, the most exact first."""


def check_model(settings: EngineSettings, *, num_workers: int = 1) -> None:
    """Raises ModelError, FileNotFoundError or MemoryError for a model or an adapter that cannot be
    served here."""
    if settings.simulate:
        return
    for name, folder in settings.adapters:
        check_adapter(name, Path(folder))
    if settings.adapter_dir is not None and not settings.adapter_dir.is_dir():
        raise FileNotFoundError(
            f"--adapter-dir is {str(settings.adapter_dir)!r}: there is no such folder; make one,"
            " which may stay empty, or name another"
        )
    if draft_model := settings.speculation_config.model:
        find_model(ModelConfig(model=draft_model))
    check_packages(settings, settings, settings, settings.parallel)
    sizes = weight_sizes(settings)
    if sizes is not None and settings.device != "cuda":
        if settings.device == "auto" and visible_gpus():
            return
        natively = _runs_natively(settings, sizes)
        form = chosen_form(settings, sizes, natively=natively)
        check_memory(settings, sizes, form, natively=natively, num_workers=num_workers)


def check_memory(
    settings: EngineSettings,
    sizes: WeightSizes,
    form: str,
    *,
    natively: bool,
    num_workers: int = 1,
) -> None:
    """Raises MemoryError for weights that do not fit in RAM beside what flags ask for.

    Args:
        form: that of the weights, as `WeightSizes.bytes_in` takes it.
    """
    free = max(0, available_ram() // num_workers - WORKER_BYTES)
    fitting = max(0, free - _cache_bytes(settings))
    needed = sizes.bytes_in(form)
    if needed <= fitting:
        return
    remedy = _remedy(sizes, natively=natively, fitting=fitting, num_workers=num_workers)
    if needed <= free:
        remedy = "lower --kv-cache-memory or --swap-space"
    raise MemoryError(
        f"{settings.model} takes {_gib(needed)} in {form}, and weights of at most {_gib(fitting)}"
        f" fit in the memory that is free{_for_each(num_workers)}; {remedy}"
    )


def _cache_bytes(settings: EngineSettings) -> int:
    """Returns the bytes that flags ask for as KV cache and swap space."""
    return int(((settings.kv_cache_memory or 0.0) + (settings.swap_space or 0.0)) * GIB)


def chosen_form(settings: EngineSettings, sizes: WeightSizes, *, natively: bool) -> str:
    """Returns the form that `choose_quantization` and `dtype_for_half` choose on a CPU."""
    if settings.quantization in ("gguf", "int8", "int4"):
        return settings.quantization
    if settings.quantization == "auto" and sizes.has_blocks and natively:
        return "gguf"
    if settings.quantization in ("auto", sizes.quantised_form) and sizes.keeps_codes and natively:
        return sizes.quantised_form
    dtype = "float32" if settings.dtype == INT16 else settings.dtype
    if dtype != "auto":
        return OWN_TYPES if dtype == "float32" and natively else dtype
    usable = {"avx512_bf16"} if natively else {"avx512_bf16", "bf16"}  # the latter is Arm's
    has_bf16 = usable & {*machine_info.cpu_features()} and limit_permits_bfloat16()
    if sizes.is_half and has_bf16:
        return "bfloat16"
    return OWN_TYPES if natively else "float32"


def _runs_natively(settings: EngineSettings, sizes: WeightSizes) -> bool:
    """Says whether `native_unsupported_reason` finds none, as far as settings and heads tell."""
    return (
        sizes.is_native
        and settings.cpu_backend != "torch"
        and settings.attention_backend == "auto"
        and settings.dtype != "float16"
    )


def _remedy(sizes: WeightSizes, *, natively: bool, fitting: int, num_workers: int) -> str:
    for form, flag in _SMALLER_FORMS.items():
        if form != "bfloat16" and not natively:
            continue
        if form == "gguf" and not sizes.has_blocks:
            continue
        if form == "bfloat16" and sizes.has_blocks:
            flag += " --quantization none"
        if (needed := sizes.bytes_in(form)) <= fitting:
            return f"{flag} takes {_gib(needed)}"
    if num_workers > 1:
        return "start fewer --workers"
    return "use a smaller model, or a file of a stronger quantisation"


def _for_each(num_workers: int) -> str:
    return f" for each of {num_workers} workers" if num_workers > 1 else ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:.1f} GiB" if num_bytes >= GIB // 10 else f"{num_bytes >> 20} MiB"
