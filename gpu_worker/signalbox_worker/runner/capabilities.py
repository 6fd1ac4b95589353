"""Reports what PyTorch supports on this machine, and what a worker would use of it."""

from dataclasses import dataclass

import torch
from torch import distributed

from signalbox_worker.config import DeviceConfig
from signalbox_worker.device.device_choice import choose_device, dtype_for_half
from signalbox_worker.models.attention import automatic_backend, installed_backends


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Capabilities as texts and counts."""

    torch_version: str
    cuda_version: str | None
    """CUDA version that PyTorch was built for."""
    gpus: tuple[str, ...]
    """GPUs that PyTorch finds."""
    cpu_capability: str
    """Widest instructions that PyTorch's own kernels use."""
    torch_backends: tuple[str, ...]
    attention_backends: tuple[str, ...]
    device: str
    half_dtype: str
    """Type that holds 16-bit weights."""
    attention_backend: str
    collectives: str
    """Processes over which `--tensor-parallel-size` can divide a model, and what joins them."""


def probe() -> Probe:
    """Finds out. Raises ValueError if SIGNALBOX_ISA names no instruction set."""
    config = DeviceConfig()
    device = choose_device(config)
    return Probe(
        torch_version=torch.__version__,
        cuda_version=torch.version.cuda,
        gpus=tuple(map(_gpu, range(torch.cuda.device_count()))),
        cpu_capability=torch.backends.cpu.get_cpu_capability(),
        torch_backends=tuple(_torch_backends()),
        attention_backends=installed_backends(),
        device=str(device),
        half_dtype=str(dtype_for_half(device)).removeprefix("torch."),
        attention_backend=automatic_backend(device),
        collectives=_collectives(device),
    )


def _gpu(index: int) -> str:
    properties = torch.cuda.get_device_properties(index)
    return (
        f"{properties.name}, {properties.total_memory / (1 << 30):.0f} GiB, "
        f"compute capability {properties.major}.{properties.minor}"
    )


def _torch_backends() -> list[str]:
    names = ("mkl", "mkldnn", "openmp", "cudnn")
    return [name for name in names if getattr(torch.backends, name).is_available()]


def _collectives(device: torch.device) -> str:
    if not distributed.is_available():
        return "none: this PyTorch is built without torch.distributed"
    if device.type != "cuda":
        in_pytorch = "over gloo" if distributed.is_gloo_available() else "not"
        return f"processes on the CPU: natively through memory, in PyTorch {in_pytorch}"
    if not distributed.is_nccl_available():
        return "none: this PyTorch is built without NCCL"
    return f"up to {torch.cuda.device_count()} GPUs, over NCCL"
