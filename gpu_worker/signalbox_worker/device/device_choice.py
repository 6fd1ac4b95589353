"""Which device and which 16-bit type a worker takes on this machine, and what serves that device.

CUDA's own modules are imported where there is CUDA alone.
"""

import torch

from signalbox_kernels.native import limit_permits_bfloat16
from signalbox_worker.config import DeviceConfig
from signalbox_worker.device.graphs import GraphRecorder
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.streams import HostStreams, Streams


def choose_device(config: DeviceConfig, parallel: ParallelConfig | None = None) -> torch.device:
    """`auto` is CUDA where there is a device; each process of a worker has one of its own.

    Raises ValueError for CUDA where there is none, or not one for each process.
    """
    has_cuda = torch.cuda.is_available()
    if config.device == "cuda" and not has_cuda:
        raise ValueError("device is 'cuda', but PyTorch finds no CUDA device; use 'cpu' or 'auto'")
    if config.device == "cpu" or not has_cuda:
        return torch.device("cpu")
    if parallel is None or parallel.num_ranks == 1:
        return torch.device("cuda", torch.cuda.current_device())
    count = torch.cuda.device_count()
    if parallel.is_placed and count == 1:
        return torch.device("cuda", 0)
    if parallel.local_size > count:
        raise ValueError(
            f"{parallel.sizes}, of which {parallel.local_size} are on this host, but PyTorch finds"
            f" {count} CUDA devices; use at most as many"
        )
    return torch.device("cuda", parallel.local_rank)


def compute_capability(device: torch.device) -> tuple[int, int] | None:
    """Returns what a CUDA device can compute with; None for a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def dtype_for_half(device: torch.device) -> torch.dtype:
    """Returns the dtype that holds 16-bit weights; on a CPU bfloat16, if it has the instructions.

    SIGNALBOX_ISA may take these away. Raises ValueError if it names no instruction set.
    """
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    capabilities = torch.cpu.get_capabilities()
    has_bf16 = capabilities.get("avx512_bf16") or capabilities.get("bf16")
    return torch.bfloat16 if has_bf16 and limit_permits_bfloat16() else torch.float32


def streams_of(device: torch.device) -> Streams:
    """Returns the streams of a device; for CUDA, call it on the thread that computes there."""
    if device.type == "cuda":
        from signalbox_worker.device.cuda_streams import CudaStreams

        return CudaStreams(device)
    return HostStreams()


def recorder_for(device: torch.device) -> GraphRecorder | None:
    """Returns the recorder of graphs of a device; None if it has no graphs."""
    if device.type != "cuda":
        return None
    from signalbox_worker.device.cuda_graphs import CudaGraphs

    return CudaGraphs(device)
