"""What frameworks raise when memory is short."""

import pytest
import torch

from signalbox_worker.device import memory


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you ..."), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True),
        (RuntimeError("Triton Error [CUDA]: out of memory"), True),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
    ids=str,
)
def test_every_way_to_find_no_memory_is_known(error: RuntimeError, is_memory: bool) -> None:
    assert memory.is_out_of_memory(error) is is_memory
