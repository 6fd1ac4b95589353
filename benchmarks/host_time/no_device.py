"""A CUDA device with nothing behind it: Triton's own launcher runs over an empty driver.

Tensors are PyTorch's "meta" ones, whose operators check, allocate and return, and compute nothing.
Kernels are compiled for a named capability, loaded and launched by Triton as on a GPU; only the
driver's calls, copies and events are empty. Import this before Triton.
"""

import ctypes
import os
import subprocess
import warnings
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from signalbox_worker.device.graphs import Graph
from signalbox_worker.runner.local_runner import LocalRunner

META = torch.device("meta")
CAPABILITY = (9, 0)
_kept: list[Any] = []
_SOURCE = Path(__file__).with_name("libcuda.c")


def _skip_slow_shapes() -> Any:
    """Makes products and clamps of "meta" tensors as cheap as a launch.

    PyTorch works their results' shapes out in Python, which a real device does not.
    """
    make_library: Any = torch.library.Library
    library = make_library("aten", "IMPL", "Meta")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they exist
        library.impl("mm", _product)
        library.impl("clamp_", lambda tensor, low=None, high=None: tensor)
    return library


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=META)


class _Driver:
    """The part of Triton's driver that asks PyTorch's CUDA, which is not there."""

    def __init__(self) -> None:
        from triton.backends.nvidia.driver import CudaLauncher, CudaUtils

        self.utils = CudaUtils()
        self.launcher_cls = CudaLauncher

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 10 * CAPABILITY[0] + CAPABILITY[1], 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return META


class EmptyGraph:
    """Work that was run once, to see that it can be."""

    def replay(self) -> None:
        """Does nothing: a launch of a graph is one call of the driver."""


class EmptyGraphs:
    """Satisfies `GraphRecorder`."""

    def capture(self, work: Any) -> Graph:
        work()
        return EmptyGraph()

    def used_bytes(self) -> int:
        return 0


@lru_cache
def driver_library(folder: Path) -> ctypes.CDLL:
    """Builds the empty driver in a folder, and makes Triton and PyTorch take it for CUDA's."""
    path = folder / "libcuda.so.1"
    command = ["cc", "-shared", "-fPIC", "-O2", "-Wl,-soname,libcuda.so.1", "-o", str(path)]
    subprocess.run([*command, str(_SOURCE)], check=True)
    library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    os.environ["TRITON_INTERPRET"] = "0"
    os.environ["TRITON_LIBCUDA_PATH"] = str(folder)
    from triton.runtime import driver

    driver.set_active(_Driver())
    _kept.append(_skip_slow_shapes())
    cuda: Any = torch.cuda
    cuda.get_device_capability = lambda device=None: CAPABILITY
    cuda.get_device_properties = lambda device=None: SimpleNamespace(multi_processor_count=132)
    return library


def num_launches(library: ctypes.CDLL) -> int:
    """Returns how many kernels Triton has launched so far."""
    return ctypes.c_long.in_dll(library, "num_launches").value


def without_copies_back(runner: LocalRunner) -> None:
    """Lets a runner read zeroes for what it would copy to the host."""
    executor: Any = runner.executor
    executor._on_host = lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype)
