"""The inputs of recorded decode steps, in memory that never moves."""

import pytest
import torch

from gpu_worker.device.device_choice import streams_of
from gpu_worker.device.input_transfer import PinnedBuffers
from gpu_worker.executors.graph_inputs import DecodeBuffers


@pytest.mark.parametrize("max_rows", [1, 2, 5, 8])
def test_columns_are_aligned_whatever_the_largest_batch(max_rows: int) -> None:
    """Triton compiles a kernel again for a pointer that is not divisible by 16."""
    cpu = torch.device("cpu")
    pinned = PinnedBuffers(cpu, streams_of(cpu).compute)
    buffers = DecodeBuffers(max_rows=max_rows, max_blocks=3, device=cpu, pinned=pinned)
    inputs = buffers.inputs(max_rows)
    assert [tensor.data_ptr() % 16 for tensor in inputs] == [0] * len(inputs)
    assert [len(tensor) for tensor in inputs] == [max_rows] * 3 + [max_rows + 1] + [max_rows] * 2
